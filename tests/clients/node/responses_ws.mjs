// The official SDK's connection does a rollout in the create form; prints what it heard.
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const [url, weather, tool] = [process.argv[2], JSON.parse(process.argv[3]), JSON.parse(process.argv[4])];
const connection = new ResponsesWS(new OpenAI({ apiKey: "sk-test", baseURL: url }));
const heard = { ids: [], types: [], text: null };

function create(more) {
  connection.send({ type: "response.create", model: "test-model", tools: [tool], store: false, ...more });
}

connection.on("event", (event) => heard.types.push(event.type));
connection.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
connection.on("response.completed", ({ response }) => {
  heard.ids.push(response.id);
  const outputs = response.output
    .filter((item) => item.type === "function_call")
    .map((item) => ({
      type: "function_call_output",
      call_id: item.call_id,
      output: weather[JSON.parse(item.arguments).city],
    }));
  if (outputs.length > 0) {
    create({ previous_response_id: response.id, input: outputs });
    return;
  }
  heard.text = response.output.at(-1).content[0].text;
  console.log(JSON.stringify(heard));
  connection.close();
});
create({ input: "How is the weather?" });
