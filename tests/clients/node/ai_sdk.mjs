// The AI SDK does the rollout by both of its providers, streamed and whole; prints each text.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const [url, weather] = [process.argv[2], JSON.parse(process.argv[3])];
const asked = [];
const tools = {
  get_weather: tool({
    description: "Tell the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      asked.push(city);
      return weather[city];
    },
  }),
};
const models = [
  createOpenAI({ baseURL: url, apiKey: "sk-test" })("test-model"),
  createOpenResponses({ name: "local", url: `${url}/responses`, apiKey: "sk-test" })("test-model"),
];
const texts = [];
for (const model of models) {
  const question = { model, prompt: "How is the weather?", tools, stopWhen: isStepCount(5) };
  let text = "";
  for await (const piece of streamText(question).textStream) text += piece;
  texts.push(text, (await generateText(question)).text);
}
console.log(JSON.stringify({ texts, asked }));
