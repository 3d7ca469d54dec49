// Runs the Vercel AI SDK against a server and prints what each call gave, as one JSON object.
//
//     node ask.mjs ADDRESS PROVIDER
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embed, embedMany, generateText, isStepCount, Output, streamText, tool } from 'ai';
import { createOllama as createSdkOllama } from 'ai-sdk-ollama';
import { createOllama } from 'ollama-ai-provider-v2';
import { z } from 'zod';

const [address, name] = process.argv.slice(2);
const openai = createOpenAICompatible({
  name: 'heddle', baseURL: `${address}/v1`, supportsStructuredOutputs: true, includeUsage: true,
});
const providers = {
  'openai-compatible': openai,
  'ollama-ai-provider-v2': createOllama({ baseURL: `${address}/api` }),
  'ai-sdk-ollama': createSdkOllama({ baseURL: address }),
};
const provider = providers[name];
const model = provider('smollm2-135m');
const vectors = (provider.embeddingModel ?? provider.textEmbeddingModel ?? provider.embedding)(
  'smollm2-135m',
);
const schema = z.object({ name: z.enum(['red', 'blue']), shade: z.enum(['light', 'dark']) });
const weather = tool({
  description: 'Tells the weather of a city.',
  inputSchema: z.object({ city: z.enum(['Paris', 'Rome']) }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const common = {
  model, prompt: 'Which colour is the sky?', temperature: 0, maxRetries: 0, maxOutputTokens: 60,
};

const seen = {};
const whole = await generateText({ ...common, maxOutputTokens: 8 });
seen.text = [whole.text, whole.finishReason, whole.usage.outputTokens];
const stream = streamText({ ...common, maxOutputTokens: 8 });
const parts = [];
for await (const part of stream.textStream) parts.push(part);
seen.streamed = [parts.join(''), await stream.finishReason, (await stream.usage).outputTokens];
seen.parts = parts.length;
seen.object = (await generateText({ ...common, output: Output.object({ schema }) })).output;
const partial = streamText({ ...common, output: Output.object({ schema }) });
for await (const part of partial.partialOutputStream) seen.streamedObject = part;
seen.choice = (
  await generateText({ ...common, output: Output.choice({ options: ['red', 'blue'] }) })
).output;
seen.embeddings = [
  (await embed({ model: vectors, value: 'one' })).embedding.length,
  (await embedMany({ model: vectors, values: ['one', 'two'] })).embeddings.length,
];
const tools = { weather };
seen.free = (await generateText({ ...common, tools, maxOutputTokens: 8 })).text;
if (name !== 'ai-sdk-ollama') { // this one has no tool choice
  const toolChoice = { type: 'tool', toolName: 'weather' };
  const called = await generateText({ ...common, tools, toolChoice, stopWhen: isStepCount(2) });
  seen.results = called.steps.flatMap((step) => step.toolResults.map((one) => one.output));
  const calling = streamText({ ...common, tools, toolChoice, stopWhen: isStepCount(1) });
  seen.streamedResults = (await calling.toolResults).map((one) => one.output);
}
console.log(JSON.stringify(seen));
