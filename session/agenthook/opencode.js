// artifactfs session hooks: records prompts and tool calls in the session of this mount.
// Written by `artifactfs agent install opencode`, removed by `artifactfs agent uninstall opencode`.
import { spawn } from "node:child_process"

const command = COMMAND
const timeout = 15000

// send resolves when the event is recorded, or cannot be: an agent never waits longer than timeout and never fails by it.
// The result is what the command has printed: a text for the model, or nothing.
function send(event) {
  return new Promise((resolve) => {
    const child = spawn("/bin/sh", ["-c", command], { stdio: ["pipe", "pipe", "ignore"] })
    let printed = ""
    const timer = setTimeout(() => {
      child.kill()
      resolve("")
    }, timeout)
    const done = () => {
      clearTimeout(timer)
      resolve(printed.trim())
    }
    child.stdout.setEncoding("utf8")
    child.stdout.on("data", (text) => (printed += text))
    child.stdout.on("error", () => {})
    child.on("error", done)
    child.on("close", done)
    child.stdin.on("error", () => {})
    child.stdin.end(JSON.stringify(event))
  })
}

const textOf = (parts) =>
  (parts ?? [])
    .filter((part) => part.type === "text" && !part.synthetic)
    .map((part) => part.text)
    .join("\n")

// addText adds a text for the model to a prompt. The ids of parts sort in the order of the parts.
function addText(text, { message, parts }) {
  const id = (parts.at(-1)?.id ?? "prt_0") + "0"
  parts.push({ id, sessionID: message.sessionID, messageID: message.id, type: "text", text, synthetic: true })
}

// lastResponse returns the text of the newest answer in a conversation.
async function lastResponse(client, id) {
  try {
    const { data } = await client.session.messages({ path: { id } })
    const answer = (data ?? []).filter((message) => message.info.role === "assistant").at(-1)
    return textOf(answer?.parts)
  } catch {
    return ""
  }
}

export const ArtifactFS = async ({ client, directory }) => {
  const subs = new Map() // conversation of a sub-agent -> the conversation that has started it, and the type of the sub-agent
  const event = (name, session, members) => {
    let top = session
    while (subs.has(top)) top = subs.get(top).parent
    const sub = top === session ? {} : { agent_id: session, agent_type: subs.get(session).type }
    return send({ hook_event_name: name, session_id: top, cwd: directory, ...sub, ...members })
  }
  return {
    "chat.message": async (input, output) => {
      if (subs.has(input.sessionID)) subs.get(input.sessionID).type = input.agent
      const members = { model: input.model?.modelID, prompt: textOf(output.parts) }
      const text = await event("chat.message", input.sessionID, members)
      if (text) addText(text, output)
    },
    "tool.execute.before": (input, output) =>
      event("tool.execute.before", input.sessionID, { tool_name: input.tool, tool_use_id: input.callID, tool_input: output.args }),
    "tool.execute.after": (input, output) =>
      event("tool.execute.after", input.sessionID, {
        tool_name: input.tool,
        tool_use_id: input.callID,
        tool_input: input.args,
        tool_response: { title: output?.title, output: output?.output },
      }),
    event: async ({ event: e }) => {
      const created = e.type === "session.created" && e.properties.info
      if (created?.parentID) subs.set(created.id, { parent: created.parentID })
      if (e.type !== "session.idle") return
      const session = e.properties.sessionID
      await event("session.idle", session, { last_assistant_message: await lastResponse(client, session) })
    },
  }
}
