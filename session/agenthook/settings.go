package agenthook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// value is a JSON value with its position in the text of a settings file. The file is edited as text, so that the rest
// of the file keeps its order, its numbers and its white space.
type value struct {
	start, end int // offsets of the first byte of the value and of the byte after the value
	// kind is '{' or '[' for an object or array, and zero for other values.
	kind    json.Delim
	members []member // members of an object or elements of an array
	text    string   // decoded value of a string
}

// member is a member of an object, or an element of an array. An element has no key.
type member struct {
	start int    // offset of the key; in an array, offset of the value itself
	key   string // key of a member, decoded
	value value
}

// maxDepth is the maximum nesting depth of a settings file.
const maxDepth = 100

// parseSettings parses a JSON text, which must be a single object, and returns the positions of all values in it. The
// text may have comments, and commas behind last members.
func parseSettings(text []byte) (value, error) {
	text = withoutComments(text)
	d := json.NewDecoder(bytes.NewReader(text))
	root, err := parseValue(d, text, 0)
	if err != nil {
		return value{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return value{}, errors.New("file has more than one JSON value")
	}
	if root.kind != '{' {
		return value{}, errors.New("file is not a JSON object")
	}
	return root, nil
}

// withoutComments returns text with spaces in the place of comments, and of commas behind last members, so that
// positions stay the same. The text itself is returned if it has none.
func withoutComments(text []byte) []byte {
	if json.Valid(text) {
		return text
	}
	text = bytes.Clone(text)
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			text[i] = ' '
		}
	}
	comma := -1     // position of a comma that nothing but white space has followed
	opened := false // whether the last character, without white space and comments, begins an object or array
	for i := 0; i < len(text); i++ {
		rest := text[i:]
		end := -1
		switch {
		case bytes.HasPrefix(rest, []byte("//")):
			if end = bytes.IndexByte(rest, '\n'); end < 0 {
				end = len(rest)
			}
		case bytes.HasPrefix(rest, []byte("/*")):
			if end = bytes.Index(rest[2:], []byte("*/")); end < 0 {
				return text // parseSettings fails
			}
			end += 4
		}
		switch c := text[i]; {
		case end >= 0:
			blank(i, i+end)
			i += end - 1
		case c == ',' && !opened:
			comma = i
		case (c == '}' || c == ']') && comma >= 0:
			blank(comma, comma+1)
			comma = -1
		case c == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			comma = -1
		case strings.IndexByte(" \t\r\n", c) < 0:
			comma = -1
		}
		if c := text[min(i, len(text)-1)]; strings.IndexByte(" \t\r\n", c) < 0 {
			opened = c == '{' || c == '['
		}
	}
	return text
}

// parseValue reads the next value from d, which decodes text. The parameter depth is the number of arrays and objects
// that contain the value.
func parseValue(d *json.Decoder, text []byte, depth int) (value, error) {
	if depth > maxDepth {
		return value{}, fmt.Errorf("JSON is nested deeper than %d", maxDepth)
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

// next returns the offset of the next token of d. The decoder itself reports only the end of the previous token.
func next(d *json.Decoder, text []byte) int {
	at := int(d.InputOffset())
	for at < len(text) && strings.IndexByte(" \t\r\n,:", text[at]) >= 0 {
		at++
	}
	return at
}

// index returns the index of the member called key. It returns -1 if there is no such member.
func (v value) index(key string) int {
	return slices.IndexFunc(v.members, func(m member) bool { return m.key == key })
}

// at looks up the first of the keys in v, each further key in the value that was found for the previous key, and
// returns the last value. It returns false if one of the keys is missing.
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

// add returns text with item added as the last member of the object or array in the parameter to, which is a value in
// text. Each line of item is indented by depth levels. The other bytes of text are kept, so that withdraw can undo add
// exactly.
func add(text []byte, to value, item string, depth int) []byte {
	at, comma := to.start+1, ""
	if n := len(to.members); n > 0 {
		at, comma = to.members[n-1].value.end, ","
	}
	indent := lineAt(depth)
	item = comma + indent + strings.ReplaceAll(item, "\n", indent)
	if comma == "" && depth > 1 && string(text[at:to.end-1]) == lineAt(depth-1) {
		item += " " // so that this empty value of the user differs from one that insert has made
	}
	return slices.Concat(text[:at], []byte(item), text[at:])
}

// lineAt returns the beginning of a line that is indented by depth levels, with the newline before it.
func lineAt(depth int) string { return "\n" + strings.Repeat("  ", depth) }

// remove returns text without the i-th member of the parameter from, which is an object or array in text. Of the text
// between members, only a comma and the white space before the member are removed, so that comments stay.
func remove(text []byte, from value, i int) []byte {
	m, n := from.members[i], len(from.members)
	before, after := from.start+1, from.end-1
	if i > 0 {
		before = from.members[i-1].value.end
	}
	if i < n-1 {
		after = from.members[i+1].start
	}
	start, end := m.start, m.value.end
	commaBefore, commaAfter := -1, comma(text, end, after)
	if i > 0 {
		commaBefore = comma(text, before, start)
	}
	// A comma that add has written is next to the previous member. Otherwise, the comma after the member is removed.
	blank := len(bytes.TrimSpace(text[before:start])) == 0
	if blank = blank || commaBefore == before && len(bytes.TrimSpace(text[before+1:start])) == 0; commaBefore >= 0 &&
		(blank || commaAfter < 0) {
		commaAfter = -1
	} else {
		commaBefore = -1
	}
	last := end
	if commaAfter >= 0 {
		last = commaAfter + 1
	}
	// The line is kept if a comment before the member ends with it, and something follows.
	for start > before && (text[start-1] == ' ' || text[start-1] == '\t') {
		start--
	}
	if start > before && text[start-1] == '\n' && (blank || bytes.HasPrefix(bytes.TrimLeft(text[last:], " \t\r"), []byte("\n"))) {
		if start--; start > before && text[start-1] == '\r' {
			start--
		}
	}
	var rest []byte
	switch {
	case commaBefore >= 0:
		rest = append(slices.Concat(text[:commaBefore], text[commaBefore+1:start]), text[end:]...)
	case commaAfter >= 0:
		rest = append(slices.Concat(text[:start], text[end:commaAfter]), text[commaAfter+1:]...)
	default:
		rest = slices.Concat(text[:start], text[end:])
	}
	return rest
}

// comma returns the position of the first comma in text[from:to] that is not in a comment. It returns -1 if there is
// none.
func comma(text []byte, from, to int) int {
	for i := from; i < to; i++ {
		end := -1
		switch rest := text[i:to]; {
		case rest[0] == ',':
			return i
		case bytes.HasPrefix(rest, []byte("//")):
			end = bytes.IndexByte(rest, '\n')
		case bytes.HasPrefix(rest, []byte("/*")):
			end = bytes.Index(rest, []byte("*/"))
		default:
			continue
		}
		if end < 0 {
			return -1
		}
		i += end
	}
	return -1
}

// insert returns text with item added as the last member of the object, or element of the array, at the path keys.
// Values that are missing on this path are created; the last one is an array if isArray is set.
func insert(text []byte, keys []string, isArray bool, item string) ([]byte, error) {
	to, err := parseSettings(text)
	if err != nil {
		return nil, err
	}
	depth := 0
	for ; depth < len(keys); depth++ {
		v, ok := to.at(keys[depth])
		if !ok {
			break
		}
		if want := json.Delim(map[bool]byte{true: '[', false: '{'}[isArray && depth == len(keys)-1]); v.kind != want {
			return nil, fmt.Errorf("member %q does not begin with %v", keys[depth], want)
		}
		to = v
	}
	for i := len(keys) - 1; i >= depth; i-- {
		begin, end := "{", "}"
		if isArray && i == len(keys)-1 {
			begin, end = "[", "]"
		}
		item = quote(keys[i]) + ": " + begin + "\n  " + strings.ReplaceAll(item, "\n", "\n  ") + "\n" + end
	}
	return add(text, to, item, depth+1), nil
}

// withdraw returns text without a value: its index in the last of the values in chain, each of which contains the next
// one. It also removes objects and arrays that insert has made for the value, which contain nothing else; the first one
// of chain stays.
func withdraw(text []byte, chain []value, indexes []int) []byte {
	i := len(chain) - 1
	for ; i > 0 && len(chain[i].members) == 1; i-- {
		v, m := chain[i], chain[i].members[0]
		if string(text[v.start+1:m.start]) != lineAt(i+1) {
			break
		}
		if tail := string(text[m.value.end : v.end-1]); tail == " "+lineAt(i) { // as add has written it
			text = slices.Concat(text[:m.value.end], text[m.value.end+1:])
			chain[i].end--
			break
		} else if tail != lineAt(i) {
			break
		}
	}
	return remove(text, chain[i], indexes[i])
}

// emptySettings is the text of a settings file without settings, of most agents. Install starts with it if there is no
// file.
const emptySettings = "{\n}\n"

// emptyVersioned is the text of a file of hooks that must have the number of its format, without hooks.
const emptyVersioned = "{\n  \"version\": 1\n}\n"

// install returns the settings text with a hook for each event. It replaces the hooks of an earlier install. If a user
// has made or edited a hook, none is added for its event, and the error is errKept.
func (c configuration) install(text []byte, a Agent, command string) ([]byte, error) {
	if !c.comments && !json.Valid(text) {
		return nil, errors.New("file is not valid JSON")
	}
	found, err := c.entries(text, a)
	if err == nil && !c.complete(text, found, a, command) {
		text, _, err = uninstall(text, a)
		for _, e := range c.events {
			if err == nil && !found.edited[e.name] {
				text, err = insert(text, []string{"hooks", e.name}, true, c.entry(e, command))
			}
		}
	}
	if err == nil && len(found.edited) > 0 {
		err = errKept
	}
	return text, err
}

// complete reports whether the settings text, whose entries were found, has exactly the hooks that install adds.
func (c configuration) complete(text []byte, found entries, a Agent, command string) bool {
	for _, e := range c.events {
		if found.own[e.name] != 1 && !found.edited[e.name] {
			return false
		}
	}
	root, err := parseSettings(text)
	hooks, _ := root.at("hooks")
	for _, event := range hooks.members {
		i := slices.IndexFunc(c.events, func(e configured) bool { return e.name == event.key })
		for _, m := range event.value.members {
			if c.state(text, m.value, a) == ownEntry && (i < 0 || found.edited[event.key] ||
				!m.value.equal(text, c.entry(c.events[i], command))) {
				return false
			}
		}
	}
	return err == nil
}

// equal reports whether the value, which is in text, has the same JSON as other, without regard to white space.
func (v value) equal(text []byte, other string) bool {
	var a, b bytes.Buffer
	return json.Compact(&a, text[v.start:v.end]) == nil && json.Compact(&b, []byte(other)) == nil &&
		bytes.Equal(a.Bytes(), b.Bytes())
}

// entry returns the JSON text of the entry that configures the hook for event e.
func (c configuration) entry(e configured, command string) string {
	type hook struct {
		Name    string `json:"name,omitempty"`
		Type    string `json:"type"`
		Command string `json:"command"`
		Timeout int64  `json:"timeout"`
	}
	h := hook{Type: "command", Command: command, Timeout: int64(cmp.Or(e.timeout, Timeout+grace) / c.unit)}
	if c.named {
		h.Name = "artifactfs"
	}
	g := struct {
		Matcher string `json:"matcher,omitempty"`
		Hooks   []hook `json:"hooks"`
	}{Hooks: []hook{h}}
	if e.tool {
		g.Matcher = ".*"
	}
	var entry any = g
	if c.flat {
		entry = h
	}
	return indented(entry)
}

// indented returns v, which consists of strings, numbers and booleans, as JSON text.
func indented(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // cannot fail
	return strings.TrimSuffix(b.String(), "\n")
}

// quote returns s as a JSON string.
func quote(s string) string {
	q, _ := json.Marshal(s)
	return string(q)
}

// uninstall returns the settings text without the hooks that install has added, and the number of removed hooks. It
// also removes objects and arrays that are empty afterwards.
func uninstall(text []byte, a Agent) (rest []byte, removed int, err error) {
	// Each removal changes the offsets after it, so the text is parsed again until no hook is left.
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
			j := slices.IndexFunc(event.value.members, func(m member) bool {
				return configurations[a].state(text, m.value, a) == ownEntry
			})
			if j < 0 {
				continue
			}
			text = withdraw(text, []value{root, hooks, event.value}, []int{root.index("hooks"), i, j})
			removed, cut = removed+1, true
			break // the offsets after the removed text have changed
		}
		if !cut {
			return text, removed, nil
		}
	}
}
