package endpoint

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// setting is one entry of git's configuration. The field name is "section.key" in lower case, and sub is the
// subsection.
type setting struct {
	name, sub, value string
	bare             bool // whether the entry is a key without "=", which means true
}

// Settings is git's configuration in the order in which git reads it. Later entries take precedence.
type Settings []setting

// ReadSettings reads the system's and the user's configuration, and the settings in env, with one call of git.
func ReadSettings(ctx context.Context, env Environment) (Settings, error) {
	cmd := env.Git(ctx, "config", "-z", "--list")
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("read git configuration: %w", err)
	}
	return ParseSettings(out), nil
}

// ParseSettings parses the output of git config -z --list: entries "name LF value NUL", or "name NUL" for a key without
// a value.
func ParseSettings(out []byte) Settings {
	var s Settings
	for entry := range bytes.SplitSeq(out, []byte{0}) {
		// git prints section.subsection.key: the section and the key have no dots, but the subsection may.
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

// Value returns the last value of the setting called name, which has no subsection, or "" if it is not set.
func (s Settings) Value(name string) string {
	value := ""
	// Later entries take precedence, so the last value is used.
	for _, line := range s {
		if line.name == name && line.sub == "" {
			value = line.value
		}
	}
	return value
}

// Rewrite replaces the start of the URL raw according to the settings url.<base>.insteadOf. If several of these
// settings apply, Rewrite uses the setting with the longest prefix. It returns false if no setting applies.
func (s Settings) Rewrite(raw string) (string, bool) {
	base, length := "", 0
	for _, line := range s {
		if line.name == "url.insteadof" && len(line.value) > length && strings.HasPrefix(raw, line.value) {
			base, length = line.sub, len(line.value)
		}
	}
	return base + raw[length:], length > 0
}

// HTTPSettings are the http.* settings that apply to one URL.
type HTTPSettings struct {
	Env               Environment
	Insecure          bool // whether http.sslVerify is false
	CAFile, CADir     string
	CertFile, KeyFile string
	Proxy             string
	ProxySet          bool     // whether http.proxy is set; if it is set but empty, no proxy is used
	FollowRedirects   bool     // whether redirects of the discovery are followed
	Headers           []string // headers in the form "Name: value"
}

// HTTP returns the settings http.* and http.<url>.* that apply to u. If several settings http.<url>.* match, the most
// specific one takes precedence, as git-config describes for http.<url>.*.
func (s Settings) HTTP(u *url.URL, user string, env Environment) (HTTPSettings, error) {
	w := HTTPSettings{FollowRedirects: true, Env: env}
	// The map best holds, for each key, the specificity of the setting that was applied last.
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
		// If two settings are equally specific, the later setting takes precedence.
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

// set applies one setting of git's configuration to w. It ignores settings that have no effect on this client.
func (w *HTTPSettings) set(key string, line setting) error {
	var err error
	var yes bool
	switch key {
	case "sslverify":
		yes, err = line.boolean()
		w.Insecure = !yes
	case "sslcainfo":
		w.CAFile = w.Env.expandHome(line.value)
	case "sslcapath":
		w.CADir = w.Env.expandHome(line.value)
	case "sslcert":
		w.CertFile = w.Env.expandHome(line.value)
	case "sslkey":
		w.KeyFile = w.Env.expandHome(line.value)
	case "proxy":
		w.Proxy, w.ProxySet = line.value, true
	// In git the value "initial" limits redirects to the first request. This client follows redirects only in the first
	// request, for every true value.
	case "followredirects":
		if w.FollowRedirects = true; line.value != "initial" {
			w.FollowRedirects, err = line.boolean()
		}
	case "extraheader":
		if line.value == "" { // an empty value removes the headers of earlier settings
			w.Headers = nil
		} else {
			w.Headers = append(w.Headers, line.value)
		}
	}
	return err
}

// environment applies the variables that, as in git, take precedence over the configuration.
func (w *HTTPSettings) environment() {
	if w.Env.Get("GIT_SSL_NO_VERIFY") != "" {
		w.Insecure = true
	}
	for name, field := range map[string]*string{
		"GIT_SSL_CAINFO": &w.CAFile, "GIT_SSL_CAPATH": &w.CADir, "GIT_SSL_CERT": &w.CertFile, "GIT_SSL_KEY": &w.KeyFile,
	} {
		if v := w.Env.Get(name); v != "" {
			*field = v
		}
	}
}

// boolean parses the value as git parses a boolean: a word or a number. A key without a value is true.
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
		return false, fmt.Errorf("read git configuration: value of %s is not a boolean", line.name)
	}
	return n != 0, nil
}

// specificity describes how much of a URL a pattern matches. The lengths of the hosts are compared first, then the
// lengths of the paths, then whether the pattern names the user.
type specificity struct {
	host, path int
	user       bool
}

// less reports whether the pattern with the specificity a is less specific than the pattern with the specificity b.
func (a specificity) less(b specificity) bool {
	if a.host != b.host {
		return a.host < b.host
	}
	if a.path != b.path {
		return a.path < b.path
	}
	return !a.user && b.user
}

// matchURL reports whether the URL matches a pattern, and how specific the pattern is. The rules are those of git's
// urlmatch.c: scheme and port must be equal, '*' stands for one label of the host name, the path of the pattern must be
// a prefix of whole components, and if the pattern names a user, it must be the user of the URL.
func matchURL(pattern string, u *url.URL, user string) (specificity, bool) {
	var none specificity
	p, err := url.Parse(pattern)
	if err != nil || p.Scheme != u.Scheme || PortOf(p) != PortOf(u) {
		return none, false
	}
	if name := p.User.Username(); name != "" && name != user {
		return none, false
	}
	// Host names are compared label by label, because '*' stands for exactly one label.
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

// PortOf returns the port of an http or https URL. If the URL has none, it returns the default port of the scheme.
func PortOf(u *url.URL) string {
	switch port := u.Port(); {
	case port != "":
		return port
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
