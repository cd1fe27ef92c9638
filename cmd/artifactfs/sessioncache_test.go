package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

func TestSessionCache(t *testing.T) {
	a, s, _ := newWork(t)
	actor := session.Actor()
	dir, hash := a.dir+"/app", strings.Repeat("ab", 32)
	if err := os.WriteFile(filepath.Join(a.dir, "file"), []byte("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string // stderr: a part
		want           any    // request; nil: none
	}{
		{"put k file -C app --ttl 1d", 0, "ab\n", "",
			control.CachePutRequest{Of: dir, Key: "k", Value: []byte("contents"), TTL: 24 * time.Hour, Actor: actor}},
		{"put k file -C work --if-missing", 0, "ab\n", "",
			control.CachePutRequest{Of: dir, Key: "k", Value: []byte("contents"), Expect: "none", Actor: actor}},
		{"cas k file -C app --expect " + hash, 3, "ab\n", "its SHA-256 is ab\nhint: read the entry",
			control.CachePutRequest{Of: dir, Key: "k", Value: []byte("contents"), Expect: hash, Actor: actor}},
		{"cas k file -C app", control.ExitUsage, "", "want the SHA-256", nil},
		{"cas k file -C app --expect x", control.ExitUsage, "", "want the SHA-256", nil},
		{"put k none -C app", control.ExitFailed, "", "no such file", nil},
		{"get k -C app -o copy", 0, "", "", nil},
		{"get k --session-remote https://x/y.git", 0, "value", "", nil},
		{"get k -C https://x/y.git#session=s@ --session-remote /z", control.ExitUsage, "", "omit --session-remote", nil},
		{"get k --session-remote embedded", control.ExitUsage, "", "needs the URL or path", nil},
		{"delete k -C https://x/y.git#session=s@", 0, "", "",
			control.CacheDeleteRequest{Of: "s", SessionRemote: "https://x/y.git", Key: "k"}},
		{"delete k -C app --expect " + hash, 3, "none\n", "there is no entry",
			control.CacheDeleteRequest{Of: dir, Key: "k", Expect: hash}},
		{"delete k -C app --expect none", control.ExitUsage, "", "want the SHA-256", nil},
		{"keys p -C app --expired", 0,
			"SIZE  STORED   EXPIRES  BY  KEY\n3 B   2 h ago  never    n   a\n3 B   2 h ago  never    n   b\n",
			"2 refs of cache entries contain no entry",
			control.CacheKeysRequest{Of: dir, Prefix: "p", Expired: true, After: "a"}},
		{"gc --max-size 1K --max-age 30d -n --session-remote /srv/r.git", 0,
			"would remove 3 entries (3.0 MiB), kept 1 (10 B)\n", "",
			control.CacheGCRequest{SessionRemote: "/srv/r.git", MaxSize: 1024, MaxAge: 30 * 24 * time.Hour, DryRun: true}},
		{"nothing", control.ExitUsage, "", "unknown command", nil},
	} {
		r := a.run(append([]string{"session", "cache"}, strings.Fields(c.args)...)...)
		if r.code != c.code || c.stdout != "" && r.stdout != c.stdout || !strings.Contains(r.stderr, c.stderr) {
			t.Errorf("%s: got exit code %d\n%s%s", c.args, r.code, r.stdout, r.stderr)
			continue
		}
		if c.want != nil {
			s.mu.Lock()
			got := s.asked[len(s.asked)-1]
			s.mu.Unlock()
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got the request %+v, want %+v", c.args, got, c.want)
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(a.dir, "copy")); err != nil || string(text) != "value" {
		t.Errorf("get -o: got %q, %v", text, err)
	}
	if left, err := filepath.Glob(filepath.Join(a.state, "cache-value-*")); err != nil || len(left) > 0 {
		t.Errorf("files that are left: %q, %v", left, err)
	}
}
