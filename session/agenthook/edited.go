package agenthook

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// entryState states what an entry in the hooks of a settings file is.
type entryState int

const (
	otherEntry  entryState = iota // it does not run the hook of artifactfs
	ownEntry                      // an install, perhaps of an earlier version, has added it
	editedEntry                   // it runs the hook, but the user has made or edited it
)

// state returns what an entry in a settings file of agent a is. text is the text of the file.
func (c configuration) state(text []byte, entry value, a Agent) entryState {
	hooks := []member{{value: entry}}
	if !c.flat {
		list, _ := entry.at("hooks")
		hooks = list.members
	}
	runs := slices.ContainsFunc(hooks, func(m member) bool {
		command, _ := m.value.at("command")
		// Another program may have the same subcommand.
		return strings.Contains(command.text, " session hook "+string(a)) && strings.Contains(command.text, "artifactfs")
	})
	switch {
	case !runs:
		return otherEntry
	case len(hooks) == 1 && c.wrote(text, hooks[0].value, a) && (c.flat || isGroup(entry)):
		return ownEntry
	}
	return editedEntry
}

// isGroup reports whether an entry has only what install writes around a hook.
func isGroup(entry value) bool {
	matcher, ok := entry.at("matcher")
	return len(entry.members) == 1 || ok && len(entry.members) == 2 && matcher.text == ".*"
}

// timeouts are the timeouts that install has ever written.
var timeouts = []time.Duration{Timeout + grace, TreeTimeout + grace, 3 * time.Second}

// wrote reports whether install can have written a hook. text is the text of the file.
func (c configuration) wrote(text []byte, hook value, a Agent) bool {
	want := map[string]string{"type": "command"}
	if c.named {
		want["name"] = "artifactfs"
	}
	for key, value := range want {
		if v, ok := hook.at(key); !ok || v.text != value {
			return false
		}
	}
	command, _ := hook.at("command")
	program, ok := strings.CutSuffix(command.text, commandSuffix(a))
	if !ok || !isWord(program) || len(hook.members) != len(want)+2 {
		return false
	}
	timeout, ok := hook.at("timeout")
	return ok && slices.ContainsFunc(timeouts, func(d time.Duration) bool {
		return string(text[timeout.start:timeout.end]) == strconv.FormatInt(int64(d/c.unit), 10)
	})
}

// isWord reports whether a shell command consists of one word, such as the path of a program in quotes.
func isWord(command string) bool {
	quoted := false
	for i := 0; i < len(command); i++ {
		switch b := command[i]; {
		case b == '\'':
			quoted = !quoted
		case b == '\\' && !quoted:
			i++
		case !quoted && strings.IndexByte(" \t\n;&|<>()$`", b) >= 0:
			return false
		}
	}
	return command != "" && !quoted
}

// commandSuffix returns the end of the command that the hooks of agent a run.
func commandSuffix(a Agent) string {
	suffix := " session hook " + string(a)
	if a == Copilot {
		suffix += " || true" // copilot refuses a tool if a hook fails, for example because artifactfs was removed
	}
	return suffix
}

// entries has the events for which a settings file has hooks of artifactfs.
type entries struct {
	own    map[string]int  // numbers of the entries that install has added
	edited map[string]bool // events with an entry that the user has made or edited
}

// entries returns the entries in the text of a settings file.
func (c configuration) entries(text []byte, a Agent) (found entries, err error) {
	found = entries{map[string]int{}, map[string]bool{}}
	root, err := parseSettings(text)
	hooks, _ := root.at("hooks")
	for _, event := range hooks.members {
		for _, m := range event.value.members {
			switch c.state(text, m.value, a) {
			case ownEntry:
				found.own[event.key]++
			case editedEntry:
				found.edited[event.key] = true
			}
		}
	}
	return found, err
}

// has reports whether there is an entry for an event.
func (e entries) has(event string) bool { return e.own[event] > 0 || e.edited[event] }
