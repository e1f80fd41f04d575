// A live Node: as python.py, for JavaScript and, where Node can strip types, TypeScript.
//
// Started with requests on descriptor 3, and its own copies of stdout and stderr on 4 and 5, so that what the code does to its
// streams does not touch ours.
'use strict';

const fs = require('node:fs');
const inspector = require('node:inspector');
const moduleOf = require('node:module');
const net = require('node:net');
const path = require('node:path');
const util = require('node:util');
const vm = require('node:vm');

const [REQUESTS, STDOUT, STDERR] = [3, 4, 5];
const MOST_RESULT = 32 * 1024;
const [base, language] = process.argv.slice(2);

try {
  fs.unlinkSync(__filename);
} catch {
  // It is in nobody's way.
}
process.argv.splice(1);

/** Waits where a stream is full: somebody reads it. */
function writeAll(descriptor, text) {
  let bytes = Buffer.from(text);
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(fs.writeSync(descriptor, bytes));
    } catch (error) {
      if (error.code !== 'EAGAIN') process.reallyExit(70);
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

function mark(descriptor, token, words) {
  writeAll(descriptor, `\x1e${token} ${words}\n`);
}

// What code expects to find at its top level, as in a file of its own in the directory where it runs.
Object.assign(globalThis, {
  require: moduleOf.createRequire(path.join(process.cwd(), 'context.js')),
  module: { exports: {} },
});
Object.defineProperty(globalThis, '__import', { value: (name) => import(/^\.{0,2}\//.test(name) ? path.resolve(name) : name) });

const session = new inspector.Session();
session.connect();

function post(method, parameters) {
  return new Promise((resolve, reject) => {
    session.post(method, parameters, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

/** Under this name code of ours is called for a moment, between two turns of the code's own. */
const HOOK = Symbol.for('nodejs.context.hook');

/** The value that an answer of the inspector means, in this very process. */
async function valueOf(remote) {
  let value;
  globalThis[HOOK] = (found) => {
    value = found;
  };
  const argument = remote.objectId ? { objectId: remote.objectId } : { value: remote.value };
  if (remote.unserializableValue) Object.assign(argument, { unserializableValue: remote.unserializableValue });
  try {
    await post('Runtime.callFunctionOn', {
      functionDeclaration: `function (value) { globalThis[Symbol.for('nodejs.context.hook')](value); }`,
      arguments: [argument],
      objectId: (await post('Runtime.evaluate', { expression: 'globalThis' })).result.objectId,
    });
  } finally {
    delete globalThis[HOOK];
  }
  return value;
}

// An inspector that is still connected would hold up the end.
process.on('exit', () => session.disconnect());

let interrupt = null;
process.on('SIGINT', () => {
  // Between two runs there is nothing to interrupt.
  if (interrupt) interrupt();
});

// What goes wrong after its run, or beside it, is told and ends nothing.
for (const event of ['uncaughtException', 'unhandledRejection']) {
  process.on(event, (error) => writeAll(STDERR, `${told(error)}\n`));
}

function told(error) {
  const text = util.types.isNativeError(error) && error.stack ? error.stack : `Uncaught ${util.inspect(error)}`;
  const lines = text.split('\n');
  // Whatever called the code is ours.
  const ours = lines.findIndex((line) => line.includes('evalmachine.<anonymous>') || line.includes(__filename));
  return (ours < 0 ? lines : lines.slice(0, ours)).filter((line) => !/ \(?node:/.test(line)).join('\n');
}

const IMPORT = /^([ \t]*)import\s+(?:([\w$*{}\s,]+?)\s+from\s+)?(['"][^'"\n]+['"])[ \t]*;?/gm;

/** Code at the top level is no module, so what a module may say is said in other words, on the same line. */
function withImports(code) {
  const asked = code.replace(IMPORT, (_whole, indent, names, from) => {
    const module = `await __import(${from})`;
    if (!names) return `${indent}${module};`;
    const space = /\*\s*as\s+([\w$]+)/.exec(names);
    const braces = /\{([^}]*)\}/.exec(names);
    const standard = /^([\w$]+)/.exec(names);
    const parts = [];
    if (space) parts.push(`const ${space[1]} = ${module};`);
    const picked = braces ? [braces[1].replace(/\bas\b/g, ':')] : [];
    if (standard) picked.unshift(`default: ${standard[1]}`);
    if (picked.length > 0) parts.push(`const { ${picked.join(', ')} } = ${module};`);
    return `${indent}${parts.join(' ')}`;
  });
  return asked.replace(/(^|[^\w$.])import\s*\(/g, '$1__import(');
}

function stripped(code) {
  if (language !== 'typescript') return code;
  return moduleOf.stripTypeScriptTypes(code, { mode: 'transform' });
}

/** Synchronous code is stopped by the watchdog of `vm`, the rest by not waiting for it any more. */
function evaluate(number, code) {
  const parameters = {
    expression: `${code}\n//# sourceURL=run-${number}`,
    replMode: true,
    awaitPromise: true,
    userGesture: false,
  };
  return new Promise((resolve, reject) => {
    interrupt = () => reject(new Interrupted());
    globalThis[HOOK] = () => {
      delete globalThis[HOOK];
      session.post('Runtime.evaluate', parameters, (error, answer) => (error ? reject(error) : resolve(answer)));
    };
    try {
      vm.runInThisContext(`globalThis[Symbol.for('nodejs.context.hook')]()`, { breakOnSigint: true });
    } catch (error) {
      if (error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') reject(new Interrupted());
      else reject(error);
    }
  });
}

class Interrupted extends Error {}

async function execute(number, code, sink) {
  const answer = await evaluate(number, withImports(stripped(code)));
  if (answer.exceptionDetails) {
    const { exception } = answer.exceptionDetails;
    const error = exception ? await valueOf(exception) : answer.exceptionDetails.text;
    writeAll(STDERR, `${told(error)}\n`);
    return 1;
  }
  const value = await valueOf(answer.result);
  // An evaluation that was ended from outside has no value to speak of.
  if (value !== undefined && !/;\s*$/.test(code)) {
    globalThis._ = value;
    sink.put(util.inspect(value, { depth: 4, maxArrayLength: 200, maxStringLength: MOST_RESULT }));
  }
  return 0;
}

class Sink {
  constructor(token, number) {
    this.token = token;
    this.directory = `${base}/${number}`;
  }

  put(text) {
    let body = Buffer.from(text);
    if (body.length > MOST_RESULT) {
      const note = `\n[… ${body.length - MOST_RESULT} bytes left out …]`;
      body = Buffer.concat([body.subarray(0, MOST_RESULT), Buffer.from(note)]);
    }
    fs.mkdirSync(this.directory, { recursive: true, mode: 0o700 });
    const head = Buffer.from(`result text/plain ${body.length} inline\n`);
    fs.writeFileSync(`${this.directory}/results`, Buffer.concat([head, body, Buffer.from('\n')]));
    mark(STDOUT, this.token, 'item 1');
  }
}

async function run(token, number, code) {
  const before = process.cpuUsage();
  let exitCode;
  try {
    exitCode = await execute(number, code, new Sink(token, number));
  } catch (error) {
    if (error instanceof Interrupted) {
      writeAll(STDERR, 'Interrupted\n');
      exitCode = 130;
    } else {
      writeAll(STDERR, `${told(error)}\n`);
      exitCode = 1;
    }
  } finally {
    interrupt = null;
  }
  const used = process.cpuUsage(before);
  mark(STDERR, token, 'done');
  const milliseconds = Math.round((used.user + used.system) / 1000);
  mark(STDOUT, token, `done ${exitCode} ${milliseconds} ${process.resourceUsage().maxRSS}`);
}

async function serve() {
  let waiting = Buffer.alloc(0);
  // A file stream would read in a thread, and the end of the process would wait for it.
  for await (const more of new net.Socket({ fd: REQUESTS, readable: true, writable: false })) {
    waiting = Buffer.concat([waiting, more]);
    for (;;) {
      const end = waiting.indexOf(10);
      if (end < 0) break;
      const [, token, number, length] = waiting.subarray(0, end).toString().split(' ');
      const from = end + 1;
      if (waiting.length < from + Number(length)) break;
      const code = waiting.subarray(from, from + Number(length)).toString();
      waiting = waiting.subarray(from + Number(length));
      await run(token, Number(number), code);
    }
  }
  // As in python.py: to end by itself would spare what was started here.
  setTimeout(() => process.exit(0), 30_000);
}

if (language === 'typescript' && typeof moduleOf.stripTypeScriptTypes !== 'function') {
  writeAll(STDERR, `contexts of TypeScript need Node 22.13 or later, and this is ${process.version}\n`);
  process.exit(69);
}
serve().catch(() => process.exit(70));
