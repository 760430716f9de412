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
  { algorithm: ['openid', 'passport'].includes(flow) ? 'oidc' : 'oauth2' },
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

  async openid() {
    const verifier = oauth.randomPKCECodeVerifier()
    const [state, nonce] = [oauth.randomState(), oauth.randomNonce()]
    const asked = {
      redirect_uri: given.redirect_uri,
      scope: 'openid profile email',
      state,
      nonce,
      max_age: '600',
      code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
      code_challenge_method: 'S256',
    }
    oauth.enableNonRepudiationChecks(server) // verify the signature, too
    say({ open: oauth.buildAuthorizationUrl(server, asked).href })
    const tokens = await oauth.authorizationCodeGrant(server, new URL(await hear()), {
      pkceCodeVerifier: verifier,
      expectedState: state,
      expectedNonce: nonce,
      idTokenExpected: true,
      maxAge: 600,
    })
    const claims = tokens.claims()
    const person = await oauth.fetchUserInfo(server, tokens.access_token, claims.sub)
    const silent = { ...asked, prompt: 'none' }
    say({ open: oauth.buildAuthorizationUrl(server, silent).href })
    const again = await oauth.authorizationCodeGrant(server, new URL(await hear()), {
      pkceCodeVerifier: verifier,
      expectedState: state,
      expectedNonce: nonce,
      idTokenExpected: true,
    })
    return { issuer: claims.iss, sub: claims.sub, email: person.email, name: person.name, again: again.claims().sub }
  },

  // As Node-RED does it, whose users sign in with this strategy of Passport.
  async passport() {
    const { Strategy } = (await import('passport-openidconnect')).default
    const about = server.serverMetadata()
    const options = {
      issuer: about.issuer,
      authorizationURL: about.authorization_endpoint,
      tokenURL: about.token_endpoint,
      userInfoURL: about.userinfo_endpoint,
      clientID: given.client_id,
      clientSecret: given.secret,
      callbackURL: given.redirect_uri,
      scope: ['profile', 'email'],
      nonce: true,
    }
    const session = {}
    const step = (query) =>
      new Promise((resolve, reject) => {
        const strategy = new Strategy(options, (issuer, profile, done) => done(null, { issuer, ...profile }))
        const came = Object.assign(Object.create(strategy), {
          redirect: (url) => resolve({ open: url }),
          success: resolve,
          fail: (why) => reject(new Error(JSON.stringify(why))),
          error: reject,
        })
        came.authenticate({ query, session, app: {}, headers: {} }, {})
      })
    say(await step({}))
    const person = await step(Object.fromEntries(new URL(await hear()).searchParams))
    return { issuer: person.issuer, id: person.id, name: person.displayName, email: person.emails[0].value }
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
