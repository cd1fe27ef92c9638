package githttp

import (
	"strings"
)

// maxName is the maximum length of the names of namespaces and repositories in paths, in bytes. It is the limit of the
// REST API.
const maxName = 512

// target is the repository that a URL names, and the path within it.
type target struct {
	namespace, repo string
	rest            string // path within the repository, such as "info/refs"
}

// parsePath parses the escaped path /NAMESPACE/REPO.git/REST. The suffix .git may be missing. ok is false if the names
// contain escaped or unusual characters, so that each name has only one spelling in logs, rules and proxies.
func parsePath(path string) (target, bool) {
	path, ok := strings.CutPrefix(path, Prefix)
	namespace, path, two := strings.Cut(path, "/")
	repo, rest, three := strings.Cut(path, "/")
	repo = strings.TrimSuffix(repo, ".git")
	if !ok || !two || !three || !isName(namespace) || !isName(repo) || !isRest(rest) {
		return target{}, false
	}
	return target{namespace, repo, rest}, true
}

// isName reports whether s can be the name of a namespace or a repository.
func isName(s string) bool {
	if s == "" || len(s) > maxName || strings.IndexByte("._-", s[0]) >= 0 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// isRest reports whether s consists of the characters of git's paths, and has no component such as "..", which a proxy
// could resolve.
func isRest(s string) bool {
	for part := range strings.SplitSeq(s, "/") {
		if !isName(part) {
			return false
		}
	}
	return len(s) <= maxName
}
