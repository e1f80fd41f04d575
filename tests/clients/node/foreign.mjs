// An authorization server of somebody else, which signs tokens: says where it listens, and lets in whoever presses its button.

import { createHash, generateKeyPairSync, randomUUID, sign } from 'node:crypto';
import { createServer } from 'node:http';

const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
const KEY = { ...publicKey.export({ format: 'jwk' }), kid: 'foreign', use: 'sig', alg: 'ES256' };
const pending = new Map();
let issuer;

function token({ resource, scope }) {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const now = Math.floor(Date.now() / 1000);
  const claims = { iss: issuer, sub: 'somebody', aud: resource, scope, iat: now, exp: now + 600 };
  const message = `${part({ alg: 'ES256', kid: KEY.kid, typ: 'at+jwt' })}.${part(claims)}`;
  const signature = sign('sha256', Buffer.from(message), { key: privateKey, dsaEncoding: 'ieee-p1363' });
  return `${message}.${signature.toString('base64url')}`;
}

const PAGES = {
  'GET /.well-known/oauth-authorization-server': () => ({
    issuer,
    authorization_endpoint: `${issuer}/authorize`,
    token_endpoint: `${issuer}/token`,
    registration_endpoint: `${issuer}/register`,
    jwks_uri: `${issuer}/keys`,
    response_types_supported: ['code'],
    grant_types_supported: ['authorization_code'],
    token_endpoint_auth_methods_supported: ['none'],
    code_challenge_methods_supported: ['S256'],
  }),
  'GET /keys': () => ({ keys: [KEY] }),
  'POST /register': (_, body) => ({ ...JSON.parse(body), client_id: randomUUID() }),
  'POST /token': (_, body) => {
    const asked = new URLSearchParams(body);
    const begun = pending.get(asked.get('code'));
    const digest = createHash('sha256').update(asked.get('code_verifier') ?? '').digest('base64url');
    if (!begun || digest !== begun.code_challenge) return { error: 'invalid_grant' };
    return { access_token: token(begun), token_type: 'Bearer', expires_in: 600, scope: begun.scope };
  },
};

createServer(async (request, response) => {
  let body = '';
  for await (const piece of request) body += piece;
  const url = new URL(request.url, issuer);
  if (url.pathname === '/authorize') {
    const asked = Object.fromEntries(url.searchParams);
    const code = randomUUID();
    pending.set(code, asked);
    const back = new URL(asked.redirect_uri);
    Object.entries({ code, state: asked.state }).forEach(([name, value]) => back.searchParams.set(name, value));
    response.setHeader('content-type', 'text/html');
    response.end(`<a href="${back.href.replaceAll('&', '&amp;')}">Continue</a>`);
    return;
  }
  const page = PAGES[`${request.method} ${url.pathname}`];
  response.statusCode = page ? (request.url === '/register' ? 201 : 200) : 404;
  response.setHeader('content-type', 'application/json');
  response.end(JSON.stringify(page?.(url, body) ?? {}));
}).listen(0, '127.0.0.1', function () {
  issuer = `http://127.0.0.1:${this.address().port}`;
  process.stderr.write(`listening on ${issuer}/mcp\n`);
});
