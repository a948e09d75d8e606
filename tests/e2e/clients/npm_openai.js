// The npm client of OpenAI against the URL in the first argument. Prints one line of JSON.
const OpenAI = require("openai").default;

async function main(url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const models = (await client.models.list()).data.map((model) => model.id);
  const asked = { model: "tiny", messages: [{ role: "user", content: "hello" }], max_tokens: 12, temperature: 0 };
  const whole = await client.chat.completions.create(asked);
  let streamed = "";
  let usage = null;
  const stream = await client.chat.completions.create({
    ...asked, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  const left = await client.chat.completions.create({ ...asked, max_tokens: 4000, stream: true });
  for await (const chunk of left) {
    if (chunk.choices[0]?.delta.content) break; // which aborts the request
  }
  const error = await client.chat.completions.create({ ...asked, model: "huge" }).catch((caught) => caught);
  console.log(JSON.stringify({
    models,
    whole: whole.choices[0].message.content,
    streamed,
    tokens: usage.completion_tokens,
    error: { name: error.constructor.name, status: error.status, code: error.code },
  }));
}

main(process.argv[2]);
