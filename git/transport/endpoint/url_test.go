package endpoint

import (
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		raw, display           string
		scheme                 Scheme
		user, host, port, path string
	}{
		{"https://example.com/a/b.git", "https://example.com/a/b.git", HTTP, "", "example.com", "", ""},
		{"HTTPS://u:s3cret@Example.com:8443/a?k=s3cret#f", "https://example.com:8443/a", HTTP, "u",
			"Example.com", "8443", ""},
		{"ssh://git@host:22/~u/x", "ssh://git@host:22/~u/x", SSH, "git", "host", "22", "~u/x"},
		{"ssh://git:s3cret@host/x%20y", "ssh://git@host/x%20y", SSH, "git", "host", "", "/x y"},
		{"ssh://[::1]:2222/x", "ssh://[::1]:2222/x", SSH, "", "::1", "2222", "/x"},
		{"git@host:a/b", "ssh://git@host/a/b", SSH, "git", "host", "", "a/b"},
		{"host:/a/b", "host:/a/b", SSH, "", "host", "", "/a/b"},
		{"[host:2222]:a", "[host:2222]:a", SSH, "", "host", "2222", "a"},
		{"u@[host:2222]:a", "ssh://u@host:2222/a", SSH, "u", "host", "2222", "a"},
		{"[::1]:a", "[::1]:a", SSH, "", "::1", "", "a"},
		{"git://host/x", "git://host/x", Git, "", "host", "", "/x"},
		{"git://host:9/~u/x", "git://host:9/~u/x", Git, "", "host", "9", "~u/x"},
		{"file:///a/b%20c", "file:///a/b%20c", Local, "", "", "", "/a/b c"},
		{"/a/./b:c", "/a/b:c", Local, "", "", "", "/a/b:c"},
		{"git@host:a@b/x", "ssh://git@host/a@b/x", SSH, "git", "host", "", "a@b/x"},
		{"host:dir/a@b", "host:dir/a@b", SSH, "", "host", "", "dir/a@b"},
		{"./host:x", cwd + "/host:x", Local, "", "", "", cwd + "/host:x"},
	} {
		ep, err := Parse(c.raw)
		if err != nil {
			t.Errorf("parse %s: %v", c.raw, err)
			continue
		}
		if ep.Display != c.display || ep.Scheme != c.scheme || ep.User != c.user || ep.Host != c.host || ep.Port != c.port ||
			ep.Path != c.path {
			t.Errorf("parse %s: got %+v", c.raw, ep)
		}
	}
	for _, raw := range []string{
		"", "http://", "https:///x", "https://u:s3cret@exa mple/", "https://u:s3cret@h:port/x", "https://h/a%0ab",
		"https://h%0a/b",
		"ftp://u:s3cret@h/x", "ssh://-oProxyCommand=s3cret/x", "ssh://-x@h/x", "-h:x", "h:-x", "h:", "ssh://h", "ssh://h/",
		"git://:s3cret@h/x",
		"u:s3cret@h:x", "u:s3cret@h/x/y",
		"ssh://h:99999999/x", "ssh://h/%zz", "file://host/x", "file://x", "a\nb", "ssh://h/a%0ab", "git://h/a%00host=x",
	} {
		ep, err := Parse(raw)
		if err == nil {
			t.Errorf("invalid URL %q was accepted as %+v", raw, ep)
		} else if !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("URL %q: the error contains the secret: %v", raw, err)
		}
	}
}

func TestSameHost(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"https://h/a", "https://u:p@h/b", true}, {"https://h/a", "https://h:8443/a", false},
		{"https://h/a", "http://h/a", false},
		{"https://h/a", "https://other/a", false}, {"/a", "/a", false}, {"h:a", "h:a", false},
		{"https://h/a", "https://h/%", false},
	} {
		if got := SameHost(c.a, c.b); got != c.want {
			t.Errorf("same host of %s and %s: got %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"https://u:p@h/x", "u@h:x", "[h:1]:x", "ssh://[::1]:1/~u", "git://h/x", "file:///x", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		ep, err := Parse(raw)
		if err != nil {
			return
		}
		if strings.ContainsAny(ep.Host+ep.User+ep.Path, "\n\x00") && ep.Scheme != HTTP {
			t.Errorf("URL %q: the result contains a control character: %+v", raw, ep)
		}
		if ep.Scheme == SSH && (ep.Host == "" || ep.Host[0] == '-' || ep.Path[0] == '-' || strings.HasPrefix(ep.User, "-")) {
			t.Errorf("URL %q: the result contains an option for ssh: %+v", raw, ep)
		}
		if ep.Scheme == HTTP {
			if u, err := url.Parse(ep.Display); err != nil || u.User != nil {
				t.Errorf("URL %q is displayed as %q, which is invalid or contains a user", raw, ep.Display)
			}
		}
	})
}
