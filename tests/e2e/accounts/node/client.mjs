// openid-client completes one flow. It prints a line of JSON when it needs a person, reads the line that says where the
// browser came back to, and prints what it got.
//
//     node client.mjs FLOW '{"issuer": …, "client_id": …, "secret": …, "redirect_uri": …, "resource": …}'

import { webcrypto } from 'node:crypto'
import { createInterface } from 'node:readline'

globalThis.crypto ??= webcrypto // Node 18 has it, but not there
const oauth = await import('openid-client')

const [flow, text] = process.argv.slice(2)
const given = JSON.parse(text)
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()

const say = (line) => console.log(JSON.stringify(line))
const hear = async () => (await lines.next()).value

const server = await oauth.discovery(
  new URL(given.issuer),
  given.client_id,
  {},
  given.secret === null ? oauth.None() : oauth.ClientSecretBasic(given.secret),
  { algorithm: 'oauth2' },
)

const seen = async (token) => {
  const answer = await oauth.fetchProtectedResource(server, token, new URL(given.resource), 'GET')
  return (await answer.json()).data.id
}

const refused = async (attempt) => {
  try {
    await attempt()
    return null
  } catch (error) {
    return error.error ?? error.status ?? String(error)
  }
}

const flows = {
  async code() {
    const verifier = oauth.randomPKCECodeVerifier()
    const state = oauth.randomState()
    const challenge = await oauth.calculatePKCECodeChallenge(verifier)
    const asked = {
      redirect_uri: given.redirect_uri,
      state,
      code_challenge: challenge,
      code_challenge_method: 'S256',
    }
    say({ open: oauth.buildAuthorizationUrl(server, asked).href })
    const came = new URL(await hear())
    const first = await oauth.authorizationCodeGrant(server, came, {
      pkceCodeVerifier: verifier,
      expectedState: state,
    })
    const user = await seen(first.access_token)
    const second = await oauth.refreshTokenGrant(server, first.refresh_token)
    const after = await seen(second.access_token)
    await oauth.tokenRevocation(server, second.access_token)
    return {
      users: [user, after],
      lifetime: first.expiresIn(),
      rotated: first.refresh_token !== second.refresh_token,
      after_revocation: await refused(() => seen(second.access_token)),
      refresh_after_revocation: await refused(() => oauth.refreshTokenGrant(server, second.refresh_token)),
    }
  },

  async client_credentials() {
    const token = await oauth.clientCredentialsGrant(server)
    return { lifetime: token.expiresIn(), refresh_token: token.refresh_token ?? null }
  },

  async device() {
    const started = await oauth.initiateDeviceAuthorization(server, {})
    say({ open: started.verification_uri, code: started.user_code, complete: started.verification_uri_complete })
    try {
      const token = await oauth.pollDeviceAuthorizationGrant(server, started)
      return { user: await seen(token.access_token) }
    } catch (error) {
      return { error: error.error ?? String(error) }
    }
  },
}

say(await flows[flow]())
lines.return()
process.exit(0)
