package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestSniff(t *testing.T) {
	for text, want := range map[string]string{"": textType, "ä\n": textType, "a\x00": bytesType, "\xff": bytesType,
		"ab\xe2\x82": textType,
		"\xe2\x82x":  bytesType, "\ufffd": textType, "%PDF-\x01": textType} {
		if got := sniff([]byte(text)); got != want {
			t.Errorf("type of %q: got %s, want %s", text, got, want)
		}
	}
}

func TestRemoteURL(t *testing.T) {
	for text, want := range map[string]string{
		"https://github.com/a/b": "https://github.com/a/b.git", "https://github.com/a/b.git": "https://github.com/a/b.git",
		"https://github.com/a/b.git/": "https://github.com/a/b.git", "HTTPS://h:8443/x%20y": "https://h:8443/x%20y.git",
		"http://github.com/a/b": "", "https://github.com/": "", "https://": "", "ssh://git@h/x": "",
		"https://u@h/x": "", "https://h/x?token=y": "",
		"https://h/x#y": "", "x": "", "": "", "https://h\n/x": "", "https:///x": "", "https://:80/x": "",
	} {
		if got, fault := remoteURL(text, false); got != want || (fault == nil) != (want != "") {
			t.Errorf("URL of %q: got %q, %v, want %q", text, got, fault, want)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for _, path := range []string{"/client/v4/accounts/a/artifacts/namespaces/n", "/v1/api/x%2Fy",
		"/artifactfs/v1/accounts/a/events",
		"/v1/api//", "/%zz", "/v1/api/%00"} {
		f.Add(path)
	}
	a := New(Options{})
	f.Fuzz(func(t *testing.T, path string) {
		if _, _, parts, ok := split(path); ok && (len(parts) == 0 || slices.Contains(parts, "") ||
			slices.ContainsFunc(parts, hasNUL)) {
			t.Errorf("%q is split into %q", path, parts)
		}
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		for _, method := range []string{"GET", "POST", "DELETE"} {
			route, params, _ := a.match(&http.Request{Method: method, URL: u})
			c := call{params: params, route: route}
			if route == nil || c.validNames() != nil {
				continue
			}
			for _, name := range []string{"namespace", "name"} {
				if strings.ContainsAny(params[name], "/\\%\x00 ") || strings.HasPrefix(params[name], ".") {
					t.Errorf("%q has the %s %q", path, name, params[name])
				}
			}
		}
	})
}

func hasNUL(s string) bool { return strings.Contains(s, "\x00") }

func FuzzBody(f *testing.F) {
	for _, text := range []string{`{"name":"a","read_only":true,"ttl":60,"refs":[["refs/*",["no-push"]]],"base":{"url":"https://h/x"}}`,
		`{"ttl":1e99}`, `[]`, `{`, "\xff", `{"name":"\ud800"}`, `null`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		in, err := parseBody(text)
		if err != nil {
			return
		}
		for _, name := range []string{"name", "read_only", "ttl", "refs", "base"} {
			in.fault = nil
			s, rules, ttl := in.text(name), in.rules(name), in.ttl(defaultTTL)
			in.flag(name)
			in.texts(name)
			if o := in.object(name); o != nil {
				o.required("url")
			}
			if in.fault == nil && (len(s) > maxText || len(rules) > maxRules || ttl <= 0) {
				t.Errorf("%q: %q, %v, %v", text, s, rules, ttl)
			}
			if in.fault != nil {
				if _, err := json.Marshal(in.fault.item()); err != nil || in.fault.Status < 400 {
					t.Errorf("%q: %+v, %v", text, in.fault, err)
				}
			}
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add(nameCursor("team"))
	f.Add("bjo")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("n:../x")))
	f.Fuzz(func(t *testing.T, cursor string) {
		name, fault := parseNameCursor(cursor)
		if fault == nil && cursor != "" && (validNamespace(name) != nil || nameCursor(name) != cursor) {
			t.Errorf("cursor %q is for %q", cursor, name)
		}
	})
}

func FuzzQuery(f *testing.F) {
	f.Add("limit=1&sort=name&page=2")
	f.Add("limit=99999999999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		values, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q := &query{values: values}
		n := q.number("limit", listLimit, 1, listMax)
		s := q.option("sort", "a", "name")
		if q.fault == nil && (n < 1 || n > listMax || s != "a" && s != "name") {
			t.Errorf("%q: %d, %q", text, n, s)
		}
	})
}
