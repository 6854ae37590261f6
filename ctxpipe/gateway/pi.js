// Has pi ask where the environment says, as `ctxpipe wrap -- pi` sets it.
export default (pi) => {
  pi.registerProvider("anthropic", { baseUrl: process.env.ANTHROPIC_BASE_URL });
  pi.registerProvider("openai", { baseUrl: process.env.OPENAI_BASE_URL });
};
