// A third party's authorization server by oidc-provider, an implementation of others. Everybody is Ada, and agrees.
// It prints its address once it listens. Arguments: the id and the secret of its client.
const http = require('node:http');
const { pathToFileURL } = require('node:url');

async function main() {
  const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')).href);
  const [clientId, secret] = process.argv.slice(2);
  const scope = 'readings lamps';
  const server = http.createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: clientId,
      client_secret: secret,
      redirect_uris: ['https://gateway.example.org/'],
      grant_types: ['authorization_code', 'refresh_token'],
      scope,
    }],
    scopes: scope.split(' '),
    features: { devInteractions: { enabled: false }, introspection: { enabled: true }, revocation: { enabled: true } },
    interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    issueRefreshToken: () => true,
    rotateRefreshToken: true,
    cookies: { keys: ['of a test'] },
    async loadExistingGrant({ oidc }) {
      const grant = new provider.Grant({ clientId, accountId: oidc.session.accountId });
      grant.addOIDCScope(scope);
      await grant.save();
      return grant;
    },
  });
  // The address of the service under test is a new one for each test.
  provider.Client.prototype.redirectUriAllowed = () => true;
  const answer = provider.callback();
  server.on('request', (request, response) => {
    if (!request.url.startsWith('/interaction/')) return answer(request, response);
    return provider.interactionFinished(request, response, { login: { accountId: 'ada@cloud' } });
  });
  console.log(issuer);
}

main();
