package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNotJSON means that a text is not valid JSON, or is not a JSON object where one is required.
var ErrNotJSON = errors.New("invalid JSON")

// secretKey matches the names of JSON members whose values are always secrets. doubtfulKey matches the names of members
// whose values are secrets if they look random.
var (
	secretKey = once(`(?i)^(?:.*[_.-])?(?:password|passwd|passphrase|pwd|secret|client_?secret|` +
		`api[_-]?key|private[_-]?key|secret[_-]?(?:access[_-]?)?key|authorization|proxy-authorization|cookie|set-cookie)$`)
	doubtfulKey = once(`(?i)(?:token|credential|secret|key)s?$`)
)

// maxKey is the maximum size in bytes of the end of a member's name that is examined.
const maxKey = 256

// RedactJSON replaces secrets in the strings of a JSON text. It returns the text in compact form, in which everything
// else is the same, including the order of members, and the number of replaced secrets. It returns ErrNotJSON if the
// text is not valid JSON.
func RedactJSON(text []byte) (clean []byte, secrets int64, err error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrNotJSON, err)
	}
	in := compact.Bytes()
	out := make([]byte, 0, len(in))
	var members []string // names of the members whose values contain position i; "" for a value without a name
	name := ""           // name of the member whose value follows
	for i := 0; i < len(in); {
		// Compact has validated the text, so it is sufficient to search for quotes and brackets.
		switch c := in[i]; c {
		case '"':
			end := endOfString(in, i)
			// A string that is followed by a colon is the name of a member.
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
			members = append(members, name)
			if c == '{' {
				name = ""
			}
		case '}', ']':
			// After a value, continue with the name of the enclosing member. The name of a member whose value is an array
			// applies to all elements of the array.
			members = members[:len(members)-1]
			name = ""
			if len(members) > 0 {
				name = members[len(members)-1]
			}
		}
		out = append(out, in[i])
		i++
	}
	return out, secrets, nil
}

// endOfString returns the index after the closing quote of the string literal that begins at index i.
func endOfString(in []byte, i int) int {
	for i++; in[i] != '"'; i++ {
		if in[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// redactString returns the value of a JSON string literal, the literal with secrets replaced, and the number of
// replaced secrets. key is the name of the member whose value is the literal, or "" if the literal is itself the name
// of a member. Only the last bytes of key are used, because all values of an array have the same key.
func redactString(literal []byte, key string) (value string, clean []byte, secrets int64) {
	if err := json.Unmarshal(literal, &value); err != nil { // cannot fail, because the whole text was validated before
		return "", []byte(`""`), 0
	}
	key = key[max(0, len(key)-maxKey):]
	redacted, n := Redact(value)
	// A value that Redact does not recognize is removed if the name of its member marks it as a secret.
	if n == 0 && !placeholder(value) && (len(value) >= 4 && secretKey().MatchString(key) ||
		random(value) && doubtfulKey().MatchString(key)) {
		redacted, n = "[redacted "+strings.ToLower(key)+"]", 1
	}
	if n == 0 {
		return value, literal, 0
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(redacted); err != nil { // cannot happen: every string can be encoded
		return value, []byte(`""`), n
	}
	return redacted, bytes.TrimSuffix(b.Bytes(), []byte("\n")), n
}

// isObject reports whether text is a JSON object. The text must be valid and compact JSON.
func isObject(text []byte) bool { return len(text) > 0 && text[0] == '{' }

// mergeObjects returns a JSON object with the members of both objects. If both have a member of the same name, the
// result has the value of the object new. The members of old come first, in their order, and then those that only new
// has.
func mergeObjects(old, new []byte) ([]byte, error) {
	a, err := members(old)
	if err != nil {
		return nil, err
	}
	b, err := members(new)
	if err != nil {
		return nil, err
	}
	// at maps the names of members to their positions in all.
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

// member is one member of a JSON object. value is the original text of its value.
type member struct {
	name  string
	value json.RawMessage
}

// members returns the members of a JSON object in their order. The text may consist of several objects, because `git
// notes merge -s cat_sort_uniq` merges two notes by concatenating them.
func members(text []byte) (all []member, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	for first := true; ; first = false {
		t, err := d.Token()
		if errors.Is(err, io.EOF) && !first {
			return all, nil
		}
		if err != nil || t != json.Delim('{') {
			return nil, fmt.Errorf("%w: want an object: %w", ErrNotJSON, err)
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
