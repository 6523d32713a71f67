// An agent does the rollout over WebSocket and over HTTP; prints each final output.
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";

const [url, weather] = [process.argv[2], JSON.parse(process.argv[3])];
const websocketBaseURL = url.replace("http:", "ws:");
setTracingDisabled(true);
const asked = [];
const getWeather = tool({
  name: "get_weather",
  description: "Tell the weather of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    asked.push(city);
    return weather[city];
  },
});
const texts = [];
for (const useResponsesWebSocket of [true, false]) {
  const modelProvider = new OpenAIProvider({
    apiKey: "sk-test", baseURL: url, websocketBaseURL, useResponses: true, useResponsesWebSocket,
  });
  const agent = new Agent({ name: "Reporter", instructions: "Be brief.", tools: [getWeather], model: "test-model" });
  const result = await new Runner({ modelProvider }).run(agent, "How is the weather?");
  texts.push(result.finalOutput);
  await modelProvider.close?.();
}
console.log(JSON.stringify({ texts, asked }));
