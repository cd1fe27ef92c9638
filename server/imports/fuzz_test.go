package imports

import (
	"context"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/artifactfs/artifactfs/server/records"
)

func contextOf() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"https://example.com/a/b.git/", "http://127.0.0.1:80/x", "https://u:p@h/", "https://h/?q#f",
		"HTTPS://[::1]/%2e%2e", "//", "https://h\\x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := parseURL(text, true)
		if err != nil {
			return
		}
		if u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname())) || u.User != nil || u.RawQuery != "" ||
			u.Hostname() == "" {
			t.Errorf("%q is accepted as %+v", text, u)
		}
		if s := u.String(); strings.HasPrefix(s, "-") || strings.ContainsFunc(s, unicode.IsControl) {
			t.Errorf("%q is passed to git as %q", text, s)
		}
	})
}

func FuzzReadRefs(f *testing.F) {
	const head = "001e# service=git-upload-pack\n0000"
	f.Add(head+"0000", "main")
	f.Add(head+"00651111111111111111111111111111111111111111 HEAD\x00symref=HEAD:refs/heads/x object-format=sha256\n0000",
		"x")
	f.Add(head+"000eversion 1\n0010shallow 1234\n", "x")
	f.Add(head+"000fERR go away", "")
	f.Fuzz(func(t *testing.T, text, branch string) {
		r, err := readRefs(strings.NewReader(text), branch)
		if err == nil && r.ObjectFormat != "sha1" && r.ObjectFormat != "sha256" {
			t.Errorf("object format %q", r.ObjectFormat)
		}
		if err != nil && strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("error %q", err)
		}
	})
}

func FuzzPick(f *testing.F) {
	f.Add("https://u:p@h\nhttps://u2:p2@h/a\n", "https://h/a/b")
	f.Add("https://u:p%0a@h", "https://h/")
	f.Fuzz(func(t *testing.T, text, to string) {
		u, err := url.Parse(to)
		if err != nil {
			return
		}
		c, ok := secret(text).pick(u)
		if ok && strings.ContainsAny(c.user+c.password, "\r\n\x00") {
			t.Errorf("credentials %q", c)
		}
		if ok && !strings.Contains(strings.ToLower(text), strings.ToLower(u.Host)) {
			t.Errorf("credentials of another host are used for %s", u.Host)
		}
	})
}

func TestTheLongestPathIsUsed(t *testing.T) {
	const text = "https://a:1@h\nhttps://b:2@h/team/\nhttps://c:3@h:8443\nhttp://d:4@h\nhttps://e:5@h/tea\n"
	for to, want := range map[string]string{
		"https://h/x": "a", "https://h/team/x": "b", "https://h/teams/x": "a", "https://H/team": "b",
		"https://h:8443/team": "c", "http://h/x": "d",
		"https://evil.h/x": "", "https://h.evil/x": "",
	} {
		u, _ := url.Parse(to)
		if c, _ := secret(text).pick(u); c.user != want {
			t.Errorf("%s: got the line of %q, want %q", to, c.user, want)
		}
	}
}

func FuzzProgress(f *testing.F) {
	f.Add("remote: Counting objects:  12% (345/2874), 1.2 MiB | 2 MiB/s\rReceiving objects: 100% (3/3), done.\n")
	f.Add("remote: Enumerating objects: 12, done.\nerror: x")
	f.Add("Receiving objects: 5% (9/3)\n")
	f.Fuzz(func(t *testing.T, text string) {
		p := &progress{}
		for i := 0; i < len(text); i += 7 {
			p.Write([]byte(text[i:min(i+7, len(text))]))
		}
		phase, done, total := p.state()
		if done < 0 || total < 0 || total > 0 && done > total || phase != "" && !strings.Contains(" "+phase, " ") {
			t.Errorf("phase %q, %d of %d", phase, done, total)
		}
		if strings.ContainsFunc(p.message(), unicode.IsControl) || len(p.message()) > 3*900 {
			t.Errorf("message %q", p.message())
		}
	})
}

func TestProgressIsUnderstood(t *testing.T) {
	for line, want := range map[string]struct {
		phase       string
		done, total int64
	}{
		"remote: Counting objects:  12% (345/2874)":                    {"counting objects", 345, 2874},
		"Receiving objects:  67% (1933/2874), 1.20 MiB | 600.00 KiB/s": {receiving, 1933, 2874},
		"Resolving deltas: 100% (5/5), done.":                          {resolving, 5, 5},
		"remote: Enumerating objects: 77, done.":                       {"enumerating objects", 77, 0},
	} {
		if phase, done, total, ok := parseProgress(line); !ok || phase != want.phase || done != want.done ||
			total != want.total {
			t.Errorf("%q: got %q, %d of %d", line, phase, done, total)
		}
	}
	if _, _, _, ok := parseProgress("remote: Buy now: 1% (1/2)"); ok {
		t.Error("a text of the other server is shown as a phase")
	}
}

func FuzzDecodeRefs(f *testing.F) {
	f.Add([]byte{})
	f.Add(encodeRefs(map[string]string{"refs/heads/main": "1"}))
	f.Fuzz(func(t *testing.T, text []byte) {
		refs, err := decodeRefs(text)
		if err != nil {
			return
		}
		again, err := decodeRefs(encodeRefs(refs))
		if err != nil || !maps.Equal(again, refs) {
			t.Errorf("%v is read as %v, %v", refs, again, err)
		}
	})
}

// FuzzUpdates checks that an import keeps refs that were changed on this server, and sets all others to those of the
// other server, whatever was changed on both sides.
func FuzzUpdates(f *testing.F) {
	f.Add("abc", "abd", "xbc")
	f.Add("", "a", "")
	f.Fuzz(func(t *testing.T, last, there, here string) {
		refs := func(text string) map[string]string {
			m := map[string]string{}
			for i, c := range []byte(text) {
				if c %= 4; c != 0 && i < 8 {
					m["refs/heads/"+string(rune('a'+i))] = string('0' + rune(c))
				}
			}
			return m
		}
		l, th, h := refs(last), refs(there), refs(here)
		list, _ := updates(h, th, l, "", "0")
		after := maps.Clone(h)
		for _, u := range list {
			if old, ok := after[u.Name]; ok && old != u.Old || !ok && u.Old != "0" {
				t.Errorf("update %+v of %v", u, h)
			}
			after[u.Name] = u.New
			if u.New == "0" {
				delete(after, u.Name)
			}
		}
		for i := range 8 {
			name := "refs/heads/" + string(rune('a'+i))
			want := h[name]
			if h[name] == l[name] {
				want = th[name]
			}
			if after[name] != want {
				t.Errorf("%s: last %q, there %q, here %q: got %q, want %q", name, l[name], th[name], h[name], after[name], want)
			}
		}
	})
}

// TestSlowServers checks that the other server may be slow while it sends objects at a minimum rate, or while its count
// of objects changes, and that the import ends if neither is so.
func TestSlowServers(t *testing.T) {
	times := pace{slow: time.Minute, count: 10 * time.Minute}
	for _, c := range []struct {
		name  string
		next  func(m *records.Import, second int64)
		until int64 // seconds after which the import must have ended; 0: it must continue
	}{
		{"10 KB a second", func(m *records.Import, _ int64) { m.Phase, m.Bytes = receiving, m.Bytes+10_000 }, 0},
		{"250 bytes a second without progress", func(m *records.Import, _ int64) { m.Bytes += 250 }, 80},
		{"objects of 250 bytes, one a second",
			func(m *records.Import, s int64) { m.Phase, m.Done, m.Bytes = receiving, s, m.Bytes+250 }, 80},
		{"a count that changes for ever",
			func(m *records.Import, s int64) { m.Phase, m.Done, m.Bytes = "counting objects", s, m.Bytes+100 }, 700},
		{"a count, and then objects", func(m *records.Import, s int64) {
			if m.Phase, m.Done = "counting objects", s; s > 300 {
				m.Phase, m.Bytes = receiving, m.Bytes+10_000
			}
		}, 0},
	} {
		now := time.Unix(1, 0)
		s, m := slowness{pace: times, seen: now}, records.Import{}
		ended := int64(0)
		for second := int64(1); second < 4000 && ended == 0; second++ {
			now = now.Add(time.Second)
			if c.next(&m, second); s.check(m, now) {
				ended = second
			}
		}
		if (ended == 0) != (c.until == 0) || ended > c.until {
			t.Errorf("%s: ended after %d seconds, want %d", c.name, ended, c.until)
		}
	}
}
