package transport

import (
	"context"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/object"
)

// config spells settings as `git config -z --list` does: "key=value" a line.
func config(lines ...string) settings {
	var b []byte
	for _, l := range lines {
		key, value, ok := strings.Cut(l, "=")
		b = append(b, key...)
		if ok {
			b = append(append(b, '\n'), value...)
		}
		b = append(b, 0)
	}
	return parseSettings(b)
}

func TestWebSettings(t *testing.T) {
	u, err := url.Parse("https://git.example.com/team/repo")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lines []string
		want  webSettings
	}{
		{nil, webSettings{follow: true}},
		{[]string{"http.sslverify=false"}, webSettings{follow: true, insecure: true}},
		{[]string{"http.https://git.example.com.sslverify=true", "http.sslverify=false"}, webSettings{follow: true}},
		{[]string{"http.https://*.example.com/.proxy=a", "http.proxy=b"}, webSettings{follow: true, proxy: "a", proxySet: true}},
		{[]string{"http.https://git.example.com/team.proxy=a", "http.https://git.example.com.proxy=b", "http.https://git.example.com/te.proxy=c"}, webSettings{follow: true, proxy: "a", proxySet: true}},
		{[]string{"http.http://git.example.com.proxy=a", "http.https://git.example.com:8443.proxy=b", "http.https://you@git.example.com.proxy=c", "http.https://example.com.proxy=d"}, webSettings{follow: true}},
		{[]string{"http.https://me@git.example.com.proxy="}, webSettings{follow: true, proxySet: true}},
		{[]string{"http.extraheader=A: 1", "http.https://git.example.com/.extraheader=B: 2"}, webSettings{follow: true, headers: []string{"A: 1", "B: 2"}}},
		{[]string{"http.extraheader=A: 1", "http.extraheader=", "http.extraheader=C: 3"}, webSettings{follow: true, headers: []string{"C: 3"}}},
		{[]string{"http.followredirects", "http.sslcainfo=/ca", "http.sslcert=/c", "http.sslkey=/k"}, webSettings{follow: true, caFile: "/ca", certFile: "/c", keyFile: "/k"}},
		{[]string{"http.followredirects=initial"}, webSettings{follow: true}},
	} {
		if got, err := config(c.lines...).web(u, "me", nil); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v", c.lines, got, err)
		}
	}
	if _, err := config("http.sslverify=perhaps").web(u, "", nil); err == nil {
		t.Error("a boolean that is none was accepted")
	}
}

func TestInsteadOf(t *testing.T) {
	root := t.TempDir()
	makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	t.Setenv("GIT_CONFIG_COUNT", "2")
	t.Setenv("GIT_CONFIG_KEY_0", "url.https://127.0.0.1:1/.insteadOf")
	t.Setenv("GIT_CONFIG_VALUE_0", "short")
	t.Setenv("GIT_CONFIG_KEY_1", "url.file://"+root+"/.insteadOf")
	t.Setenv("GIT_CONFIG_VALUE_1", "shorter:")
	r := openRemote(t, "shorter:r", Options{})
	if _, err := r.Refs(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if r.URL() != "shorter:r" {
		t.Errorf("URL = %q", r.URL())
	}
}

func TestSSHPrograms(t *testing.T) {
	for _, name := range []string{"GIT_SSH_COMMAND", "GIT_SSH", "GIT_SSH_VARIANT"} {
		t.Setenv(name, "")
	}
	argv := func(s settings) string {
		p := s.ssh(nil)
		return strings.Join(p.argv(append(p.options("22", 15*time.Second), "host")), " ")
	}
	const options = "-o SendEnv=GIT_PROTOCOL -o ConnectTimeout=15 -p 22 host"
	if got, want := argv(nil), "ssh "+options; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := argv(config("core.sshcommand=my ssh")), `sh -c my ssh "$@" my ssh `+options; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := argv(config("ssh.variant=simple")), "ssh host"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	t.Setenv("GIT_SSH", "/x/TortoisePlink.exe")
	if got, want := argv(nil), "/x/TortoisePlink.exe -batch -P 22 host"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-7": 0, "x": 0, "99999999999999": 0, "999999999": maxRetryWait,
		"Thu, 02 Jan 2020 03:04:35 GMT": 30 * time.Second, "Thu, 02 Jan 2020 03:04:00 GMT": 0} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

func TestBackoff(t *testing.T) {
	for n := range 70 {
		if d := backoff(n, 0); d < backoffFirst/2 || d > backoffMost {
			t.Errorf("attempt %d waits %v", n, d)
		}
	}
	if d := backoff(0, time.Minute); d < time.Minute {
		t.Errorf("asked for a minute, waits %v", d)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if fits(ctx, 2*time.Minute) || !fits(ctx, time.Second) || fits(context.Background(), waitMost+1) {
		t.Error("fits")
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("http.proxy\nx\x00http.https://h/.sslverify\nfalse\x00core.bare\x00"))
	u := &url.URL{Scheme: "https", Host: "h"}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := parseSettings(in)
		s.web(u, "", nil)
		s.insteadOf("https://h/")
		s.ssh(nil)
	})
}
