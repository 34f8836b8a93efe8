/** The claims of a JWT, unverified: only for choosing a storage key and a renewal time. @param {string} token @returns {any} */
export function readClaims(token) {
  try {
    const bytes = Uint8Array.from(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes)) ?? {};
  } catch {
    return {}; // an opaque token is fine, it just cannot be looked into
  }
}
