package agenthook

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/lazy"
)

// Part is a part of an agent's configuration that is installed and removed separately.
type Part string

const (
	Hooks Part = "hooks" // the hooks, which record what the agent does
	Tools Part = "tools" // the entry of the command artifactfs mcp, by which the agent uses the session
	Skill Part = "skill" // a text that tells the agent when to use the tools and commands
)

// Parts returns all parts, in the order in which they are installed.
func Parts() []Part { return []Part{Hooks, Tools, Skill} }

// piece is what a part has in one file.
type piece struct {
	path  string // path of the file, relative to the working directory
	empty string // text of a file that contains nothing else
	// shared states that a project may share the file, or that its users add entries to it. It is not excluded from git:
	// their entries would be in no commit and in no checkpoint.
	shared bool
	whole  bool // whether the piece is the whole file
	// put returns the text of the file with the piece, which replaces one that an earlier put has added. It returns
	// errKept if the file has an entry of the user with the same name; the text is nil if nothing can be added beside it.
	put func(text []byte, program string) ([]byte, error)
	// cut returns the text without the piece, and the number of entries that were removed.
	cut func(text []byte) (rest []byte, removed int, err error)
}

// errKept means that nothing was added, because the user has an entry, or a file, with the same name.
var errKept = errors.New("user has an entry artifactfs")

// piece returns what a part has in its file.
func (a Agent) piece(p Part) piece {
	c := configurations[a]
	switch p {
	case Tools:
		return tools[a]
	case Skill:
		return whole(skillFiles[a], skillSeal, errKept, func(string) string { return skill })
	}
	if a == OpenCode {
		return whole(c.path, pluginSeal, errForeign, func(program string) string {
			return strings.Replace(plugin, "COMMAND", quote(program+commandSuffix(a)), 1)
		})
	}
	return piece{
		path: c.path, empty: c.empty,
		put: func(text []byte, program string) ([]byte, error) { return c.install(text, a, program+commandSuffix(a)) },
		cut: func(text []byte) ([]byte, int, error) { return uninstall(text, a) },
	}
}

// errForeign means that a file of the same name exists.
var errForeign = errors.New("file exists, and artifactfs has not written it, or it was edited since")

// whole returns the piece that is a whole file, at whose end is a seal. If another file is there, or the file was
// edited, put returns the error foreign.
func whole(path string, seal [2]string, foreign error, text func(program string) string) piece {
	ours := func(text []byte) bool {
		_, state := unseal(text, seal)
		// Earlier versions have written the plugin without a seal.
		return state == sealed || state == unsealed && bytes.HasPrefix(text, []byte(pluginMark))
	}
	return piece{path: path, whole: true,
		put: func(before []byte, program string) ([]byte, error) {
			if len(before) > 0 && !ours(before) {
				return nil, foreign
			}
			after := text(program)
			return fmt.Appendf(nil, "%s%s%x%s", after, seal[0], sha256.Sum256([]byte(after)), seal[1]), nil
		},
		cut: func(before []byte) ([]byte, int, error) {
			if !ours(before) {
				return before, 0, nil
			}
			return nil, 1, nil
		},
	}
}

// The seals of the plugin and of the skill are comments with a hash of the text before them. They show whether somebody
// has edited the file.
var (
	pluginSeal = [2]string{"// artifactfs sha256 ", "\n"}
	skillSeal  = [2]string{"<!-- artifactfs sha256 ", " -->\n"}
)

// sealState is the state of the seal of a file.
type sealState int

const (
	unsealed sealState = iota // there is no seal
	sealed
	edited // the text is not the one that was sealed
)

// unseal returns the text before the seal, and the state of the seal.
func unseal(text []byte, seal [2]string) ([]byte, sealState) {
	at := bytes.LastIndex(text, []byte(seal[0]))
	if at < 0 {
		return text, unsealed
	}
	if string(text[at:]) != fmt.Sprintf("%s%x%s", seal[0], sha256.Sum256(text[:at]), seal[1]) {
		return text[:at], edited
	}
	return text[:at], sealed
}

// skill is the text of the skill.
//
//go:embed skill.md
var skill string

// skillFiles are the files of the skill, in the directories in which the agents look for the skills of a project.
var skillFiles = map[Agent]string{
	Claude:   ".claude/skills/artifactfs/SKILL.md",
	Codex:    ".agents/skills/artifactfs/SKILL.md",
	Copilot:  ".github/skills/artifactfs/SKILL.md",
	Cursor:   ".cursor/skills/artifactfs/SKILL.md",
	Gemini:   ".gemini/skills/artifactfs/SKILL.md",
	OpenCode: ".opencode/skills/artifactfs/SKILL.md",
}

// toolsName is the name of the entry of the tools.
const toolsName = "artifactfs"

// sharedTools is the file of a project that several agents read.
const sharedTools = ".mcp.json"

// tools are the entries of the tools, in the files of a project that the agents read.
var tools = map[Agent]piece{
	Claude:  server(sharedTools, "mcpServers", standard),
	Codex:   {path: ".codex/config.toml", shared: true, put: putTable, cut: cutTable},
	Copilot: server(sharedTools, "mcpServers", standard),
	// Cursor does not start it in the directory of the project.
	Cursor: server(".cursor/mcp.json", "mcpServers", func(argv []string) any {
		return standard(append(slices.Clip(argv), "${workspaceFolder}"))
	}),
	Gemini: server(".gemini/settings.json", "mcpServers", standard),
	OpenCode: server("opencode.json", "mcp", func(argv []string) any {
		return struct {
			Type    string   `json:"type"`
			Command []string `json:"command"`
		}{"local", argv}
	}),
}

// standard is the entry of a server with the arguments argv in most agents' files.
func standard(argv []string) any {
	return struct {
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}{argv[0], argv[1:]}
}

// arguments returns the arguments that start the tools. program is the beginning of a shell command.
func arguments(program string) []string {
	if strings.ContainsAny(program, " '\"\\$`") {
		return []string{"sh", "-c", "exec " + program + " mcp \"$@\"", "artifactfs"}
	}
	return []string{program, "mcp"}
}

// server returns the piece that is a member toolsName of an object in a JSON file.
func server(path, object string, entry func(argv []string) any) piece {
	cut := func(text []byte) ([]byte, int, error) { return cutEntry(text, object, isServer) }
	return piece{path: path, empty: emptySettings, shared: true, cut: cut,
		put: func(text []byte, program string) ([]byte, error) {
			item := indented(entry(arguments(program)))
			root, err := parseSettings(text)
			if present, ok := root.at(object, toolsName); ok && present.equal(text, item) {
				return text, nil
			}
			if err == nil {
				text, _, err = cut(text)
			}
			if err == nil {
				root, err = parseSettings(text)
			}
			if err != nil {
				return nil, err
			}
			if _, ok := root.at(object, toolsName); ok {
				return nil, errKept
			}
			return insert(text, []string{object}, false, quote(toolsName)+": "+item)
		},
	}
}

// isServer reports whether a member is the entry of the tools that server has added: it runs artifactfs mcp without
// arguments of the user, and has no other settings.
func isServer(m member) bool {
	if v := m.value; m.key != toolsName || v.kind != '{' || len(v.members) != 2 {
		return false
	}
	command, _ := m.value.at("command")
	var words []string
	if args, ok := m.value.at("args"); ok && command.kind == 0 && args.kind == '[' {
		words = append(words, command.text)
		command = args
	} else if kind, _ := m.value.at("type"); kind.text != "local" || command.kind != '[' {
		return false
	}
	for _, e := range command.members {
		words = append(words, e.value.text)
	}
	if n := len(words); n > 0 && words[n-1] == "${workspaceFolder}" {
		words = words[:n-1]
	}
	return startsTools(words)
}

// startsTools reports whether words can be a result of arguments.
func startsTools(words []string) bool {
	if len(words) == 4 && words[0] == "sh" && words[1] == "-c" {
		return strings.HasPrefix(words[2], "exec ") && strings.HasSuffix(words[2], ` mcp "$@"`) && words[3] == "artifactfs"
	}
	return len(words) == 2 && strings.HasSuffix(words[0], "artifactfs") && words[1] == "mcp"
}

// cutEntry returns the settings text without the members, or elements, of the value called name for which ours returns
// true, and their number.
func cutEntry(text []byte, name string, ours func(member) bool) ([]byte, int, error) {
	for removed := 0; ; removed++ {
		root, err := parseSettings(text)
		if err != nil {
			return nil, 0, err
		}
		in, _ := root.at(name)
		i := slices.IndexFunc(in.members, ours)
		if i < 0 {
			return text, removed, nil
		}
		text = withdraw(text, []value{root, in}, []int{root.index(name), i})
	}
}

// The lines between which the table of the tools is in the configuration of codex.
const (
	tableBegin = "# artifactfs begin\n"
	tableEnd   = "# artifactfs end\n"
)

// putTable returns the configuration of codex with the table of the tools at its end. It recognizes the forms of TOML
// in which the servers may be there already, and does nothing if it is in doubt.
func putTable(text []byte, program string) ([]byte, error) {
	text, _, err := cutTable(text)
	if err != nil {
		return nil, err
	}
	has := func(pattern string) bool {
		servers := `["']?mcp_servers["']?\s*`
		return regexp.MustCompile(`(?m)^\s*` + strings.ReplaceAll(pattern, "SERVERS", servers)).Match(text)
	}
	switch {
	case has(`# artifactfs begin$`) && !has(`\[SERVERS\.\s*artifactfs\s*\]`):
		return nil, errors.New("line \"" + strings.TrimSpace(tableBegin) + "\" is left of a table")
	case has(`SERVERS=`):
		return nil, errors.New("mcp_servers is an inline table, to which no table can be added")
	case has(`(\[\s*)?SERVERS\.\s*["']?artifactfs\b`), has(`\[\s*SERVERS\]`) && has(`["']?artifactfs["']?\s*[.=]`):
		return nil, errKept
	}
	argv := arguments(program)
	table := tableBegin + "[mcp_servers." + toolsName + "]\ncommand = " + quote(argv[0]) + "\nargs = ["
	for i, arg := range argv[1:] {
		table += strings.Repeat(", ", min(i, 1)) + quote(arg)
	}
	table += "]\n" + tableEnd
	// A last line without a newline is restored, because the block then has none at its end, too.
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		table = "\n" + strings.TrimSuffix(table, "\n")
	}
	return append(bytes.Clone(text), table...), nil
}

// ourTable matches the table that putTable has added, and what follows it.
var ourTable = lazy.Regexp(`(?s)(^|\n)` + tableBegin + `\[mcp_servers\.artifactfs\]\ncommand = ([^\n]*)\n` +
	`args = (\[[^\n]*\])\n` + strings.TrimSpace(tableEnd) + `(\n.*|$)`)

// more matches a line at the beginning of a text that continues a table.
var more = lazy.Regexp(`^(\s*(#[^\n]*)?\n)*\s*[^\s#\[]`)

// cutTable returns the configuration of codex without the table of the tools. A table that somebody has edited stays.
func cutTable(text []byte) ([]byte, int, error) {
	at := ourTable().FindSubmatchIndex(text)
	if at == nil {
		return text, 0, nil
	}
	begin, rest := at[0], text[at[8]:]
	words := make([]string, 1)
	var args []string
	if json.Unmarshal(text[at[4]:at[5]], &words[0]) != nil || json.Unmarshal(text[at[6]:at[7]], &args) != nil ||
		!startsTools(append(words, args...)) || more().Match(rest) {
		return text, 0, nil
	}
	if len(rest) > 0 {
		begin, rest = at[3], rest[1:]
	}
	return slices.Concat(text[:begin], rest), 1, nil
}
