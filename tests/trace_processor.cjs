// Runs Perfetto's trace processor once: its worker is told the requests on standard input, and answers on standard output.
// The bundle is made for a browser's worker; this is as much of one as it asks for.
const fs = require("fs"), path = require("path"), vm = require("vm");

const folder = process.argv[2];
class FileRequest {
  open(_method, name) { this.response = fs.readFileSync(path.join(folder, path.basename(name))); }
  send() {}
}
const log = (...words) => console.error(...words);
const worker = { location: { href: "" } };
const world = vm.createContext({
  self: worker, WorkerGlobalScope: Object, XMLHttpRequest: FileRequest, TextDecoder, TextEncoder, URL, performance,
  setTimeout, crypto, console: { log, warn: log, error: log },
});
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), world);
const port = {
  postMessage(bytes) {
    for (let at = 0; at < bytes.length;) at += fs.writeSync(1, bytes, at);
  },
};
worker.onmessage({ data: port });
// an array of another realm is none to the worker
const copied = vm.runInContext("(bytes) => new Uint8Array(bytes)", world);
setImmediate(() => port.onmessage({ data: copied(fs.readFileSync(0)) }));
