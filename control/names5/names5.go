// Package names5 converts replies of the control protocol between the present names of their fields and those of version 5.
package names5

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// Renamed is the version of the messages in which some fields of replies were renamed. Such a field has a tag `v5` with its
// old name.
const Renamed = 6

// With returns raw, which is a reply of type t, with the field names of protocol 5. It is used for clients of that
// version.
func With(raw json.RawMessage, t reflect.Type) json.RawMessage {
	return rename(raw, t, func(name, name5 string) (from, to string) { return name, name5 })
}

// From returns raw, which is a reply of type t from a daemon that uses protocol 5, with the current field names.
func From(raw json.RawMessage, t reflect.Type) json.RawMessage {
	return rename(raw, t, func(name, name5 string) (from, to string) { return name5, name })
}

// rename renames the fields of a JSON value of type t, and of all values in it. The function pair returns the name to replace
// and the new name. A value that does not have the type t is returned unchanged, because json.Unmarshal reports the error
// later.
func rename(raw json.RawMessage, t reflect.Type, pair func(name, name5 string) (from, to string)) json.RawMessage {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice:
		var members []json.RawMessage
		if !holdsStruct(t.Elem()) || json.Unmarshal(raw, &members) != nil || members == nil {
			return raw
		}
		for i := range members {
			members[i] = rename(members[i], t.Elem(), pair)
		}
		if all, err := json.Marshal(members); err == nil {
			return all
		}
		return raw
	case reflect.Struct:
		return renameMembers(raw, t, pair)
	}
	return raw
}

// renameMembers does the work of rename for a JSON object. It keeps the order of the members.
func renameMembers(raw json.RawMessage, t reflect.Type, pair func(name, name5 string) (from, to string)) json.RawMessage {
	type field struct {
		name string
		t    reflect.Type
	}
	fields := make(map[string]field)
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		from, to := name, name
		if name5 := f.Tag.Get("v5"); name5 != "" {
			from, to = pair(name, name5)
		}
		fields[from] = field{to, f.Type}
	}
	members := json.NewDecoder(bytes.NewReader(raw))
	if start, err := members.Token(); err != nil || start != json.Delim('{') {
		return raw
	}
	out := []byte{'{'}
	for members.More() {
		var value json.RawMessage
		token, err := members.Token()
		name, ok := token.(string)
		if err != nil || !ok || members.Decode(&value) != nil {
			return raw
		}
		if f, ok := fields[name]; ok {
			name, value = f.name, rename(value, f.t, pair)
		}
		key, err := json.Marshal(name)
		if err != nil {
			return raw
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), value...)
	}
	return append(out, '}')
}

// holdsStruct reports whether t is a struct after all pointers and slices were removed from it.
func holdsStruct(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}
