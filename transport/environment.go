package transport

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

	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// Environment is a list of NAME=value as os.Environ returns it: that of the user who asked for a remote, with the settings of
// git, ssh and credential helpers that count there. nil is the environment of this process. It may hold secrets.
type Environment []string

// isConfigEnv says whether a variable is configuration given on a command line, which may hold a secret.
func isConfigEnv(name string) bool {
	return name == "GIT_CONFIG" || name == "GIT_CONFIG_PARAMETERS" || name == "GIT_CONFIG_COUNT" ||
		strings.HasPrefix(name, "GIT_CONFIG_KEY_") || strings.HasPrefix(name, "GIT_CONFIG_VALUE_")
}

func (e Environment) all() []string {
	if e == nil {
		return os.Environ()
	}
	return e
}

// Without returns a copy without the variables that drop names.
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

// get is os.Getenv: the last entry counts, as in a process that gets it.
func (e Environment) get(name string) string {
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

// git prepares stock git outside any repository.
func (e Environment) git(ctx context.Context, args ...string) *exec.Cmd {
	cmd := gitcmd.New(ctx, args...)
	cmd.Env = gitcmd.Environ(e)
	cmd.WaitDelay = time.Second // a helper of git's may outlive it
	return cmd
}

// forRepository is for a program that serves a repository of this host, or reaches one by ssh: it has settings of its own.
func (e Environment) forRepository() []string { return e.Without(gitcmd.IsLocal, isConfigEnv) }

// ForRemote is for stock git that reaches a remote for a repository of its own.
func (e Environment) ForRemote() []string { return gitcmd.Environ(e) }

// Fingerprint identifies what may decide how a remote is reached and logged in to: what is served with one environment must
// not be served with another that differs in this.
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

func decides(name string) bool {
	switch {
	case strings.HasPrefix(name, "GIT_AUTHOR_"), strings.HasPrefix(name, "GIT_COMMITTER_"), strings.HasPrefix(name, "GIT_TRACE"), name == "GIT_EDITOR", name == "GIT_PAGER":
		return false
	case strings.HasPrefix(name, "GIT_"), strings.HasSuffix(name, "_PROXY"), name == "HOME", name == "XDG_CONFIG_HOME", name == "SSH_AUTH_SOCK", name == "SSH_ASKPASS":
		return true
	}
	return slices.ContainsFunc([]string{"TOKEN", "PASS", "SECRET", "CREDENTIAL", "_KEY", "AUTH"}, func(word string) bool { return strings.Contains(name, word) })
}

func (e Environment) expandHome(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && e.get("HOME") != "" {
		return e.get("HOME") + "/" + rest
	}
	return path
}

// proxy chooses the proxy of a request by http_proxy, https_proxy and no_proxy.
func (e Environment) proxy() func(*http.Request) (*url.URL, error) {
	if e == nil {
		return http.ProxyFromEnvironment
	}
	either := func(name string) string {
		if v := e.get(strings.ToUpper(name)); v != "" {
			return v
		}
		return e.get(name)
	}
	c := httpproxy.Config{HTTPProxy: either("http_proxy"), HTTPSProxy: either("https_proxy"), NoProxy: either("no_proxy"), CGI: e.get("REQUEST_METHOD") != ""}
	choose := c.ProxyFunc()
	return func(r *http.Request) (*url.URL, error) { return choose(r.URL) }
}
