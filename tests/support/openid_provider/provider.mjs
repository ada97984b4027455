// An OpenID provider with a login form of its own: the certified oidc-provider from npm, with the people, the client and
// the issuer of the settings that are read from stdin. Whoever logs in has agreed that Keystone may know.
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';
import Provider from 'oidc-provider';

const settings = JSON.parse(await text(process.stdin));
const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });

const provider = new Provider(settings.issuer, {
  clients: [settings.client],
  jwks: { keys: [{ ...key, use: 'sig', alg: 'RS256', kid: 'tests' }] },
  cookies: { keys: [randomBytes(32).toString('hex')] },
  claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name', 'preferred_username', 'groups'] },
  conformIdTokenClaims: false,
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  features: { devInteractions: { enabled: false }, rpInitiatedLogout: { enabled: true } },
  pkce: { required: () => true },
  findAccount: (ctx, id) => settings.people[id] && {
    accountId: id, claims: () => ({ sub: id, ...settings.people[id].claims }),
  },
  async loadExistingGrant(ctx) {
    const grant = new ctx.oidc.provider.Grant({
      clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId,
    });
    grant.addOIDCScope('openid email profile');
    await grant.save();
    return grant;
  },
});

const form = (refusal) => `<!doctype html><title>Identity provider</title><h1>Identity provider</h1><p>${refusal}</p>
<form method="post"><label>User <input name="user"></label> <label>Password <input name="password" type="password"></label>
<button>Sign in</button></form>`;

async function interact(request, response) {
  const { prompt } = await provider.interactionDetails(request, response);
  if (prompt.name !== 'login') throw new Error(`nobody can answer the prompt ${prompt.name}`);
  let refusal = '';
  if (request.method === 'POST') {
    const fields = new URLSearchParams(await text(request));
    const found = Object.entries(settings.people).find(([, one]) => one.user === fields.get('user'));
    if (found && found[1].password === fields.get('password')) {
      await provider.interactionFinished(request, response, { login: { accountId: found[0] } });
      return;
    }
    refusal = 'Wrong user or password.';
  }
  response.setHeader('Content-Type', 'text/html');
  response.end(form(refusal));
}

const others = provider.callback();
createServer((request, response) => {
  if (!request.url.startsWith('/interaction/')) return others(request, response);
  return interact(request, response).catch((error) => {
    response.statusCode = 400;
    response.end(String(error));
  });
}).listen(settings.port, '127.0.0.1', () => console.log('ready'));
