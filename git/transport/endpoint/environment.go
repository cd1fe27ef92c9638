package endpoint

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// Environment is a list of NAME=value entries, as os.Environ returns it. It is the environment of the user who mounted
// a remote, with that user's settings for git, ssh and credential helpers. A nil Environment stands for the environment
// of this process. It may contain secrets.
type Environment []string

// isConfigEnv reports whether the variable called name holds configuration that was given on a git command line (git
// -c). Its value may contain a secret.
func isConfigEnv(name string) bool {
	return name == "GIT_CONFIG" || name == "GIT_CONFIG_PARAMETERS" || name == "GIT_CONFIG_COUNT" ||
		strings.HasPrefix(name, "GIT_CONFIG_KEY_") || strings.HasPrefix(name, "GIT_CONFIG_VALUE_")
}

// all returns the entries of e, or the entries of this process's environment if e is nil.
func (e Environment) all() []string {
	if e == nil {
		return os.Environ()
	}
	return e
}

// Without returns a copy of the environment in which those variables are left out for whose names a function in drop
// returns true.
func (e Environment) Without(drop ...func(name string) bool) []string {
	kept := make([]string, 0, len(e)+8)
	for _, v := range e.all() {
		name, _, _ := strings.Cut(v, "=")
		if !slices.ContainsFunc(drop, func(is func(string) bool) bool { return is(name) }) {
			kept = append(kept, v)
		}
	}
	return kept
}

// Get returns the value of the variable name, or "" if it is not set. If the list contains several entries for this
// variable, Get uses the last one, as a process does that is started with the list.
func (e Environment) Get(name string) string {
	if e == nil {
		return os.Getenv(name)
	}
	for _, v := range slices.Backward(e) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// Git returns a command that runs stock git outside of any repository, in this environment.
func (e Environment) Git(ctx context.Context, args ...string) *exec.Cmd {
	cmd := gitcmd.New(ctx, args...)
	cmd.Env = gitcmd.Environ(e.foreign())
	cmd.WaitDelay = time.Second // a helper that git has started may outlive git
	return cmd
}

// ForRepository returns the environment for a program that serves a repository on this host, or that reaches a
// repository through ssh. It leaves out the variables that point git at another repository, and the settings of a git
// command line, because the repository has its own settings.
func (e Environment) ForRepository() []string {
	return e.foreign().Without(gitcmd.IsLocal, isConfigEnv)
}

// ForRemote returns the environment for a stock git process that runs in another repository and reaches a remote.
func (e Environment) ForRemote() []string { return gitcmd.Environ(e.foreign()) }

// foreign returns the environment without the variables of artifactfs, which are for programs that make tokens. They
// may be secrets that other programs must not see.
func (e Environment) foreign() Environment {
	if e == nil {
		return nil
	}
	return e.Without(func(name string) bool { return strings.HasPrefix(name, "ARTIFACTFS_") })
}

// Fingerprint returns a hash of the variables that may determine how a remote is reached and which login is used. A
// result that was obtained in one environment must not be used in an environment with another fingerprint.
func (e Environment) Fingerprint() string {
	var decisive []string
	for _, v := range e.ForRemote() {
		name, _, _ := strings.Cut(v, "=")
		if name = strings.ToUpper(name); decides(name) {
			decisive = append(decisive, v)
		}
	}
	slices.Sort(decisive)
	sum := sha256.Sum256([]byte(strings.Join(decisive, "\x00")))
	return string(sum[:])
}

// decides reports whether the variable called name may determine how a remote is reached or which login is used. The
// name is in upper case.
func decides(name string) bool {
	switch {
	case strings.HasPrefix(name, "GIT_AUTHOR_"), strings.HasPrefix(name, "GIT_COMMITTER_"),
		strings.HasPrefix(name, "GIT_TRACE"),
		name == "GIT_EDITOR", name == "GIT_PAGER":
		return false
	case strings.HasPrefix(name, "GIT_"), strings.HasSuffix(name, "_PROXY"), name == "HOME", name == "XDG_CONFIG_HOME",
		name == "SSH_AUTH_SOCK", name == "SSH_ASKPASS":
		return true
	}
	return slices.ContainsFunc([]string{"TOKEN", "PASS", "SECRET", "CREDENTIAL", "_KEY", "AUTH"},
		func(word string) bool { return strings.Contains(name, word) })
}

// expandHome replaces "~/" at the beginning of a path with the user's home directory.
func (e Environment) expandHome(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && e.Get("HOME") != "" {
		return e.Get("HOME") + "/" + rest
	}
	return path
}

// ProxyFunc returns the function that chooses the proxy of a request, according to http_proxy, https_proxy and
// no_proxy.
func (e Environment) ProxyFunc() func(*http.Request) (*url.URL, error) {
	if e == nil {
		return http.ProxyFromEnvironment
	}
	// The upper-case name of a variable takes precedence, as in net/http.
	either := func(name string) string {
		if v := e.Get(strings.ToUpper(name)); v != "" {
			return v
		}
		return e.Get(name)
	}
	c := httpproxy.Config{HTTPProxy: either("http_proxy"), HTTPSProxy: either("https_proxy"),
		NoProxy: either("no_proxy"), CGI: e.Get("REQUEST_METHOD") != ""}
	choose := c.ProxyFunc()
	return func(r *http.Request) (*url.URL, error) { return choose(r.URL) }
}
