package transport

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// setting is one line of git's configuration: name is section.key in lower case, sub the subsection between.
type setting struct {
	name, sub, value string
	bare             bool // a key without "=", which means true
}

// settings is git's configuration in the order of its files, later ones winning.
type settings []setting

// readSettings asks git for all of it in one call, system and user level and the environment's; which of it
// applies to the remote's URL is decided here.
func readSettings(ctx context.Context, env Environment) (settings, error) {
	cmd := env.git(ctx, "config", "-z", "--list")
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("read git configuration: %w", err)
	}
	return parseSettings(out), nil
}

// parseSettings reads "name LF value NUL" entries, or "name NUL" for a key without a value.
func parseSettings(out []byte) settings {
	var s settings
	for entry := range bytes.SplitSeq(out, []byte{0}) {
		name, value, ok := strings.Cut(string(entry), "\n")
		first, last := strings.IndexByte(name, '.'), strings.LastIndexByte(name, '.')
		if first < 0 {
			continue
		}
		line := setting{name: strings.ToLower(name[:first] + name[last:]), value: value, bare: !ok}
		if first < last {
			line.sub = name[first+1 : last]
		}
		s = append(s, line)
	}
	return s
}

// last is the value that wins among those without a subsection.
func (s settings) last(name string) string {
	value := ""
	for _, line := range s {
		if line.name == name && line.sub == "" {
			value = line.value
		}
	}
	return value
}

// insteadOf applies url.<base>.insteadOf: the longest prefix of the URL wins.
func (s settings) insteadOf(raw string) (string, bool) {
	base, length := "", 0
	for _, line := range s {
		if line.name == "url.insteadof" && len(line.value) > length && strings.HasPrefix(raw, line.value) {
			base, length = line.sub, len(line.value)
		}
	}
	return base + raw[length:], length > 0
}

// webSettings are the http.* settings that apply to one URL.
type webSettings struct {
	env               Environment
	insecure          bool // sslVerify = false
	caFile, caDir     string
	certFile, keyFile string
	proxy             string
	proxySet          bool     // http.proxy is there; empty means none
	follow            bool     // redirects of discovery
	headers           []string // "Name: value"
}

// web collects http.* and http.<url>.*. Of the latter, what matches more of the URL wins (git-config, http.<url>.*).
func (s settings) web(u *url.URL, user string, env Environment) (webSettings, error) {
	w := webSettings{follow: true, env: env}
	best := map[string]specificity{}
	for _, line := range s {
		key, ok := strings.CutPrefix(line.name, "http.")
		if !ok {
			continue
		}
		var match specificity
		if line.sub != "" {
			if match, ok = matchURL(line.sub, u, user); !ok {
				continue
			}
		}
		if match.less(best[key]) {
			continue
		}
		best[key] = match
		if err := w.set(key, line); err != nil {
			return w, err
		}
	}
	w.environment()
	return w, nil
}

func (w *webSettings) set(key string, line setting) error {
	var err error
	var yes bool
	switch key {
	case "sslverify":
		yes, err = line.boolean()
		w.insecure = !yes
	case "sslcainfo":
		w.caFile = w.env.expandHome(line.value)
	case "sslcapath":
		w.caDir = w.env.expandHome(line.value)
	case "sslcert":
		w.certFile = w.env.expandHome(line.value)
	case "sslkey":
		w.keyFile = w.env.expandHome(line.value)
	case "proxy":
		w.proxy, w.proxySet = line.value, true
	case "followredirects":
		if w.follow = true; line.value != "initial" {
			w.follow, err = line.boolean()
		}
	case "extraheader":
		if line.value == "" { // resets the list
			w.headers = nil
		} else {
			w.headers = append(w.headers, line.value)
		}
	}
	return err
}

// environment overrides the configuration, as in git.
func (w *webSettings) environment() {
	if w.env.get("GIT_SSL_NO_VERIFY") != "" {
		w.insecure = true
	}
	for name, field := range map[string]*string{
		"GIT_SSL_CAINFO": &w.caFile, "GIT_SSL_CAPATH": &w.caDir, "GIT_SSL_CERT": &w.certFile, "GIT_SSL_KEY": &w.keyFile,
	} {
		if v := w.env.get(name); v != "" {
			*field = v
		}
	}
}

func (line setting) boolean() (bool, error) {
	switch strings.ToLower(line.value) {
	case "true", "yes", "on":
		return true, nil
	case "":
		return line.bare, nil
	case "false", "no", "off":
		return false, nil
	}
	n, err := strconv.Atoi(line.value)
	if err != nil {
		return false, fmt.Errorf("read git configuration: %s is no boolean", line.name)
	}
	return n != 0, nil
}

// specificity is how much of a URL a pattern names: host first, then path, then user.
type specificity struct {
	host, path int
	user       bool
}

func (a specificity) less(b specificity) bool {
	if a.host != b.host {
		return a.host < b.host
	}
	if a.path != b.path {
		return a.path < b.path
	}
	return !a.user && b.user
}

// matchURL compares as git's urlmatch.c: scheme and port equal, '*' stands for one label of the host, the path is
// a prefix by whole components, a user in the pattern must be the URL's.
func matchURL(pattern string, u *url.URL, user string) (specificity, bool) {
	var none specificity
	p, err := url.Parse(pattern)
	if err != nil || p.Scheme != u.Scheme || portOf(p) != portOf(u) {
		return none, false
	}
	if name := p.User.Username(); name != "" && name != user {
		return none, false
	}
	labels, want := strings.Split(strings.ToLower(u.Hostname()), "."), strings.Split(strings.ToLower(p.Hostname()), ".")
	if len(labels) != len(want) {
		return none, false
	}
	for i := range want {
		if want[i] != "*" && want[i] != labels[i] {
			return none, false
		}
	}
	prefix := strings.TrimSuffix(p.Path, "/")
	rest, ok := strings.CutPrefix(u.Path, prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return none, false
	}
	return specificity{len(p.Hostname()), len(prefix) + 1, p.User.Username() != ""}, true
}

func portOf(u *url.URL) string {
	switch port := u.Port(); {
	case port != "":
		return port
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// seconds rounds up, for options of other programs.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
