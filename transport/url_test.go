package transport

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
		scheme                 scheme
		user, host, port, path string
	}{
		{"https://example.com/a/b.git", "https://example.com/a/b.git", schemeHTTP, "", "example.com", "", ""},
		{"HTTPS://u:s3cret@Example.com:8443/a?k=s3cret#f", "https://example.com:8443/a", schemeHTTP, "u", "Example.com", "8443", ""},
		{"ssh://git@host:22/~u/x", "ssh://git@host:22/~u/x", schemeSSH, "git", "host", "22", "~u/x"},
		{"ssh://git:s3cret@host/x%20y", "ssh://git@host/x%20y", schemeSSH, "git", "host", "", "/x y"},
		{"ssh://[::1]:2222/x", "ssh://[::1]:2222/x", schemeSSH, "", "::1", "2222", "/x"},
		{"git@host:a/b", "ssh://git@host/a/b", schemeSSH, "git", "host", "", "a/b"},
		{"host:/a/b", "host:/a/b", schemeSSH, "", "host", "", "/a/b"},
		{"[host:2222]:a", "[host:2222]:a", schemeSSH, "", "host", "2222", "a"},
		{"u@[host:2222]:a", "ssh://u@host:2222/a", schemeSSH, "u", "host", "2222", "a"},
		{"[::1]:a", "[::1]:a", schemeSSH, "", "::1", "", "a"},
		{"git://host/x", "git://host/x", schemeGit, "", "host", "", "/x"},
		{"git://host:9/~u/x", "git://host:9/~u/x", schemeGit, "", "host", "9", "~u/x"},
		{"file:///a/b%20c", "file:///a/b%20c", schemeLocal, "", "", "", "/a/b c"},
		{"/a/./b:c", "/a/b:c", schemeLocal, "", "", "", "/a/b:c"},
		{"git@host:a@b/x", "ssh://git@host/a@b/x", schemeSSH, "git", "host", "", "a@b/x"},
		{"host:dir/a@b", "host:dir/a@b", schemeSSH, "", "host", "", "dir/a@b"},
		{"./host:x", cwd + "/host:x", schemeLocal, "", "", "", cwd + "/host:x"},
	} {
		ep, err := parseURL(c.raw)
		if err != nil {
			t.Errorf("%s: %v", c.raw, err)
			continue
		}
		if ep.display != c.display || ep.scheme != c.scheme || ep.user != c.user || ep.host != c.host || ep.port != c.port || ep.path != c.path {
			t.Errorf("%s: %+v", c.raw, ep)
		}
	}
	for _, raw := range []string{
		"", "http://", "https:///x", "https://u:s3cret@exa mple/", "https://u:s3cret@h:port/x", "https://h/a%0ab", "https://h%0a/b",
		"ftp://u:s3cret@h/x", "ssh://-oProxyCommand=s3cret/x", "ssh://-x@h/x", "-h:x", "h:-x", "h:", "ssh://h", "ssh://h/", "git://:s3cret@h/x",
		"u:s3cret@h:x", "u:s3cret@h/x/y",
		"ssh://h:99999999/x", "ssh://h/%zz", "file://host/x", "file://x", "a\nb", "ssh://h/a%0ab", "git://h/a%00host=x",
	} {
		ep, err := parseURL(raw)
		if err == nil {
			t.Errorf("%q: accepted as %+v", raw, ep)
		} else if !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: secret in %v", raw, err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"https://u:p@h/x", "u@h:x", "[h:1]:x", "ssh://[::1]:1/~u", "git://h/x", "file:///x", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		ep, err := parseURL(raw)
		if err != nil {
			return
		}
		if strings.ContainsAny(ep.host+ep.user+ep.path, "\n\x00") && ep.scheme != schemeHTTP {
			t.Errorf("%q: control character in %+v", raw, ep)
		}
		if ep.scheme == schemeSSH && (ep.host == "" || ep.host[0] == '-' || ep.path[0] == '-' || strings.HasPrefix(ep.user, "-")) {
			t.Errorf("%q: option for ssh in %+v", raw, ep)
		}
		if ep.scheme == schemeHTTP {
			if u, err := url.Parse(ep.display); err != nil || u.User != nil {
				t.Errorf("%q is shown as %q", raw, ep.display)
			}
		}
	})
}
