package agenthook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// value is a JSON value and its position in a text. Settings are changed as text, so that the rest of a file keeps
// its order, its numbers and its white space.
type value struct {
	start, end int // the value's bytes
	// kind is '{' or '[' for an object or array, and zero for other values.
	kind    json.Delim
	members []member // members of an object or elements of an array
	text    string   // value of a string
}

// member is a member of an object, or an element of an array, which has no key.
type member struct {
	start int // position of the key, or of the value in an array
	key   string
	value value
}

// maxDepth bounds the nesting of a settings file.
const maxDepth = 100

// parseSettings returns the places of all values in a JSON text, which must be one object.
func parseSettings(text []byte) (value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	root, err := parseValue(d, text, 0)
	if err != nil {
		return value{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return value{}, errors.New("there is more than one JSON value")
	}
	if root.kind != '{' {
		return value{}, errors.New("not a JSON object")
	}
	return root, nil
}

// parseValue reads the next value of d, which reads text. depth is the number of enclosing values.
func parseValue(d *json.Decoder, text []byte, depth int) (value, error) {
	if depth > maxDepth {
		return value{}, fmt.Errorf("it is nested deeper than %d", maxDepth)
	}
	start := next(d, text)
	token, err := d.Token()
	if err != nil {
		return value{}, err
	}
	v := value{start: start}
	switch t := token.(type) {
	case string:
		v.text = t
	case json.Delim:
		v.kind = t
		for d.More() {
			m := member{start: next(d, text)}
			if t == '{' {
				key, err := d.Token()
				if err != nil {
					return value{}, err
				}
				m.key = key.(string)
			}
			if m.value, err = parseValue(d, text, depth+1); err != nil {
				return value{}, err
			}
			v.members = append(v.members, m)
		}
		if _, err := d.Token(); err != nil {
			return value{}, err
		}
	}
	v.end = int(d.InputOffset())
	return v, nil
}

// next returns the position of the next token: the decoder's offset is the end of the previous one.
func next(d *json.Decoder, text []byte) int {
	at := int(d.InputOffset())
	for at < len(text) && strings.IndexByte(" \t\r\n,:", text[at]) >= 0 {
		at++
	}
	return at
}

// index returns the position of the member with a key, or -1.
func (v value) index(key string) int {
	return slices.IndexFunc(v.members, func(m member) bool { return m.key == key })
}

// at returns the value that is reached by following keys through nested objects. It returns false if one of them is
// missing.
func (v value) at(keys ...string) (value, bool) {
	for _, key := range keys {
		i := v.index(key)
		if i < 0 {
			return value{}, false
		}
		v = v.members[i].value
	}
	return v, true
}

// add returns text with item as the last member of an object or array, each line of which is
// indented by depth levels. The existing text keeps its bytes: remove undoes it exactly.
func add(text []byte, to value, item string, depth int) []byte {
	at, comma := to.start+1, ""
	if n := len(to.members); n > 0 {
		at, comma = to.members[n-1].value.end, ","
	}
	indent := "\n" + strings.Repeat("  ", depth)
	return slices.Concat(text[:at], []byte(comma+indent+strings.ReplaceAll(item, "\n", indent)), text[at:])
}

// remove returns text without member i of an object or array.
func remove(text []byte, from value, i int) []byte {
	start, end := from.start+1, from.members[i].value.end
	switch {
	case i > 0:
		start = from.members[i-1].value.end
	// Removing the first of several members must also remove the comma behind it.
	case len(from.members) > 1:
		start, end = from.members[0].start, from.members[1].start
	}
	return slices.Concat(text[:start], text[end:])
}

// emptySettings is a file in which nothing is set; Install begins with it where there is no file.
const emptySettings = "{\n}\n"

// install returns settings with a hook on each event. Hooks of an earlier install are removed.
func (c configuration) install(text []byte, a Agent, command string) ([]byte, error) {
	text, _, err := uninstall(text, a)
	if err != nil {
		return nil, err
	}
	// The text is parsed again for each event, because adding a hook moves the positions behind it.
	for _, e := range c.events {
		root, err := parseSettings(text)
		if err != nil {
			return nil, err
		}
		group := c.group(e, command)
		hooks, ok := root.at("hooks")
		switch {
		case !ok:
			text = add(text, root, "\"hooks\": {\n  "+quote(e.name)+": [\n    "+strings.ReplaceAll(group, "\n", "\n    ")+"\n  ]\n}", 1)
			continue
		case hooks.kind != '{':
			return nil, errors.New(`"hooks" is not an object`)
		}
		groups, ok := hooks.at(e.name)
		switch {
		case !ok:
			text = add(text, hooks, quote(e.name)+": [\n  "+strings.ReplaceAll(group, "\n", "\n  ")+"\n]", 2)
		case groups.kind != '[':
			return nil, fmt.Errorf(`"hooks", %q is not an array`, e.name)
		default:
			text = add(text, groups, group, 3)
		}
	}
	return text, nil
}

// group returns the entry of an event.
func (c configuration) group(e configured, command string) string {
	type hook struct {
		Name    string `json:"name,omitempty"`
		Type    string `json:"type"`
		Command string `json:"command"`
		Timeout int64  `json:"timeout"`
	}
	g := struct {
		Matcher string `json:"matcher,omitempty"`
		Hooks   []hook `json:"hooks"`
	}{Hooks: []hook{{Type: "command", Command: command, Timeout: int64((Timeout + grace) / c.unit)}}}
	if e.tool {
		g.Matcher = ".*"
	}
	if c.named {
		g.Hooks[0].Name = "artifactfs"
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(g) // strings and a number: it cannot fail
	return strings.TrimSuffix(b.String(), "\n")
}

// quote returns s as a JSON string.
func quote(s string) string {
	q, _ := json.Marshal(s)
	return string(q)
}

// uninstall returns settings without the hooks that install added, and how many there were. Objects
// and arrays that become empty by that go, too.
func uninstall(text []byte, a Agent) (rest []byte, removed int, err error) {
	// Each removal moves the positions behind it, so the text is parsed again until nothing is left to remove.
	for {
		root, err := parseSettings(text)
		if err != nil {
			return nil, 0, err
		}
		hooks, ok := root.at("hooks")
		if !ok {
			return text, removed, nil
		}
		cut := false
		for i, event := range hooks.members {
			j := slices.IndexFunc(event.value.members, func(m member) bool { return isOurs(m.value, a) })
			if j < 0 {
				continue
			}
			removed, cut = removed+1, true
			switch {
			case len(event.value.members) > 1:
				text = remove(text, event.value, j)
			case len(hooks.members) > 1:
				text = remove(text, hooks, i)
			default:
				text = remove(text, root, root.index("hooks"))
			}
			break // the positions of all values behind it have changed
		}
		if !cut {
			return text, removed, nil
		}
	}
}

// isOurs reports whether an entry of an event has our hook and no other.
func isOurs(group value, a Agent) bool {
	hooks, ok := group.at("hooks")
	if !ok || len(hooks.members) != 1 {
		return false
	}
	command, ok := hooks.members[0].value.at("command")
	// The suffix alone could belong to another program with the same subcommand.
	return ok && strings.HasSuffix(command.text, commandSuffix(a)) && strings.Contains(command.text, "artifactfs")
}

// commandSuffix returns the end of the command line of our hooks, by which isOurs recognizes them.
func commandSuffix(a Agent) string { return " session hook " + string(a) }
