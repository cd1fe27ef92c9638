package endpoint

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// config returns the settings in lines of the form "key=value", as if `git config -z --list` had printed them.
func config(lines ...string) Settings {
	var b []byte
	for _, l := range lines {
		key, value, ok := strings.Cut(l, "=")
		b = append(b, key...)
		if ok {
			b = append(append(b, '\n'), value...)
		}
		b = append(b, 0)
	}
	return ParseSettings(b)
}

func TestHTTPSettings(t *testing.T) {
	for _, name := range []string{"GIT_SSL_NO_VERIFY", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY"} {
		t.Setenv(name, "") // ignore settings of the user who runs the test
	}
	u, err := url.Parse("https://git.example.com/team/repo")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lines []string
		want  HTTPSettings
	}{
		{nil, HTTPSettings{FollowRedirects: true}},
		{[]string{"http.sslverify=false"}, HTTPSettings{FollowRedirects: true, Insecure: true}},
		{[]string{"http.https://git.example.com.sslverify=true", "http.sslverify=false"},
			HTTPSettings{FollowRedirects: true}},
		{[]string{"http.https://*.example.com/.proxy=a", "http.proxy=b"},
			HTTPSettings{FollowRedirects: true, Proxy: "a", ProxySet: true}},
		{[]string{"http.https://git.example.com/team.proxy=a", "http.https://git.example.com.proxy=b",
			"http.https://git.example.com/te.proxy=c"}, HTTPSettings{FollowRedirects: true, Proxy: "a", ProxySet: true}},
		{[]string{"http.http://git.example.com.proxy=a", "http.https://git.example.com:8443.proxy=b",
			"http.https://you@git.example.com.proxy=c", "http.https://example.com.proxy=d"},
			HTTPSettings{FollowRedirects: true}},
		{[]string{"http.https://me@git.example.com.proxy="}, HTTPSettings{FollowRedirects: true, ProxySet: true}},
		{[]string{"http.extraheader=A: 1", "http.https://git.example.com/.extraheader=B: 2"},
			HTTPSettings{FollowRedirects: true, Headers: []string{"A: 1", "B: 2"}}},
		{[]string{"http.extraheader=A: 1", "http.extraheader=", "http.extraheader=C: 3"},
			HTTPSettings{FollowRedirects: true, Headers: []string{"C: 3"}}},
		{[]string{"http.followredirects", "http.sslcainfo=/ca", "http.sslcert=/c", "http.sslkey=/k"},
			HTTPSettings{FollowRedirects: true, CAFile: "/ca", CertFile: "/c", KeyFile: "/k"}},
		{[]string{"http.followredirects=initial"}, HTTPSettings{FollowRedirects: true}},
	} {
		if got, err := config(c.lines...).HTTP(u, "me", nil); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("HTTP settings of %q: got %+v, %v", c.lines, got, err)
		}
	}
	if _, err := config("http.sslverify=perhaps").HTTP(u, "", nil); err == nil {
		t.Error("an invalid boolean was accepted")
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("http.proxy\nx\x00http.https://h/.sslverify\nfalse\x00core.bare\x00"))
	u := &url.URL{Scheme: "https", Host: "h"}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := ParseSettings(in)
		s.HTTP(u, "", nil)
		s.Rewrite("https://h/")
	})
}

func TestProxyExceptions(t *testing.T) {
	for _, c := range []struct {
		list, host string
		want       bool
	}{{"", "a", false}, {"*", "a", true}, {"example.com", "git.Example.com", true}, {".example.com", "example.com", true},
		{"x,example.com", "badexample.com", false}} {
		if got := excepted(c.list, c.host); got != c.want {
			t.Errorf("excepted(%q, %q) = %v", c.list, c.host, got)
		}
	}
}
