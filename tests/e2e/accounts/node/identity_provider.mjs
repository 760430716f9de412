// An identity provider that speaks OpenID Connect: oidc-provider, where every name and password will do. It prints the
// line of JSON {"issuer": …}, reads the address that browsers come back to, and prints {} when it serves.
//
//     node identity_provider.mjs CLIENT_ID CLIENT_SECRET

import { createServer } from 'node:http'
import { createInterface } from 'node:readline'

console.warn = console.info = () => {} // that this is for tests only
const { Provider } = await import('oidc-provider')

const [client_id, client_secret] = process.argv.slice(2)
const say = (line) => console.log(JSON.stringify(line))

const server = createServer()
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
const issuer = `http://127.0.0.1:${server.address().port}`
say({ issuer })

const lines = createInterface({ input: process.stdin })
const { value: redirect_uri } = await lines[Symbol.asyncIterator]().next()
const provider = new Provider(issuer, {
  clients: [{ client_id, client_secret, redirect_uris: [redirect_uri] }],
  claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'] },
  findAccount: (_context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.org`, email_verified: !id.startsWith('unverified'), name: id }),
  }),
  pkce: { required: () => true },
  cookies: { keys: ['for tests only'] },
})
provider.use(async (context, next) => {
  await next()
  // Its pages would have letters from elsewhere.
  if (typeof context.body === 'string') context.body = context.body.replace(/@import url\([^)]*\);/, '')
})
server.on('request', provider.callback())
say({})
