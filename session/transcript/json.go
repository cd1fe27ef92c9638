package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNotJSON means that a text is not the JSON that it has to be.
var ErrNotJSON = errors.New("no JSON")

// secretKey are names of members whose values are secrets, whatever they look like; doubtfulKey, if
// they do.
var (
	secretKey   = once(`(?i)^(?:.*[_.-])?(?:password|passwd|passphrase|pwd|secret|client_?secret|api[_-]?key|private[_-]?key|secret[_-]?(?:access[_-]?)?key|authorization|proxy-authorization|cookie|set-cookie)$`)
	doubtfulKey = once(`(?i)(?:token|credential|secret|key)s?$`)
)

// RedactJSON takes secrets out of the strings of a JSON text, which it compacts, and leaves all
// else as it is, also the order of members.
func RedactJSON(text []byte) (clean []byte, secrets int64, err error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrNotJSON, err)
	}
	in := compact.Bytes()
	out := make([]byte, 0, len(in))
	var around []string // names of the members that objects and arrays around are the values of
	name := ""          // the name of the member whose value follows
	for i := 0; i < len(in); {
		switch c := in[i]; c {
		case '"':
			end := endOfString(in, i)
			isName := end < len(in) && in[end] == ':'
			key := name
			if isName {
				key = ""
			}
			value, literal, n := redactString(in[i:end], key)
			out, secrets, i = append(out, literal...), secrets+n, end
			if isName {
				name = value
			}
			continue
		case '{', '[':
			around = append(around, name)
			if c == '{' {
				name = ""
			}
		case '}', ']':
			around = around[:len(around)-1]
			name = ""
			if len(around) > 0 {
				name = around[len(around)-1]
			}
		}
		out = append(out, in[i])
		i++
	}
	return out, secrets, nil
}

// endOfString is behind the string that begins at i.
func endOfString(in []byte, i int) int {
	for i++; in[i] != '"'; i++ {
		if in[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// redactString returns the value of a string literal, and the literal without secrets.
func redactString(literal []byte, key string) (value string, clean []byte, secrets int64) {
	if err := json.Unmarshal(literal, &value); err != nil { // it was looked at as a whole before
		return "", []byte(`""`), 0
	}
	redacted, n := Redact(value)
	if n == 0 && !placeholder(value) && (secretKey().MatchString(key) && len(value) >= 4 || doubtfulKey().MatchString(key) && random(value)) {
		redacted, n = "[redacted "+strings.ToLower(key)+"]", 1
	}
	if n == 0 {
		return value, literal, 0
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(redacted); err != nil { // a string always can be
		return value, []byte(`""`), n
	}
	return redacted, bytes.TrimSuffix(b.Bytes(), []byte("\n")), n
}

// isObject reports whether a compact JSON text is an object.
func isObject(text []byte) bool { return len(text) > 0 && text[0] == '{' }

// mergeObjects puts the members of an object over those of another. Their order is that of the old
// one, then that of the new one.
func mergeObjects(old, new []byte) ([]byte, error) {
	a, err := members(old)
	if err != nil {
		return nil, err
	}
	b, err := members(new)
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	var all []member
	for _, m := range append(a, b...) {
		if i, ok := at[m.name]; ok {
			all[i].value = m.value
			continue
		}
		at[m.name] = len(all)
		all = append(all, m)
	}
	out := []byte{'{'}
	for i, m := range all {
		if i > 0 {
			out = append(out, ',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, name...), ':'), m.value...)
	}
	return append(out, '}'), nil
}

type member struct {
	name  string
	value json.RawMessage
}

// members lists those of an object in their order, or of several one after the other, which git
// notes merge -s cat_sort_uniq makes of notes that two have written.
func members(text []byte) (all []member, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	for first := true; ; first = false {
		t, err := d.Token()
		if errors.Is(err, io.EOF) && !first {
			return all, nil
		}
		if err != nil || t != json.Delim('{') {
			return nil, fmt.Errorf("%w object: %w", ErrNotJSON, err)
		}
		for d.More() {
			t, err := d.Token()
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
			}
			var value json.RawMessage
			if err := d.Decode(&value); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
			}
			name, _ := t.(string)
			all = append(all, member{name, value})
		}
		if _, err := d.Token(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
		}
	}
}
