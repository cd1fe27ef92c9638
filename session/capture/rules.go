package capture

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
)

// Rules decide which files a checkpoint contains in addition to the tracked files. The field Exclude also applies to
// tracked files: a checkpoint then contains the version of the file in the base tree.
type Rules struct {
	// Include are globs of paths that checkpoints contain although they are ignored or look like secrets.
	Include []string
	// Exclude are globs of paths that checkpoints leave out, even if the paths are tracked.
	Exclude []string
	// NoDenyList makes checkpoints contain paths that look like secrets.
	NoDenyList bool
	// MaxFileSize is the maximum size in bytes of untracked files in a checkpoint; 0 means DefaultMaxFileSize.
	MaxFileSize int64
}

// denied lists patterns of file names that look like secrets, in the syntax of gitignore(5). The patterns do not apply
// to committed files.
const denied = `
.env*
!.env.example
!.env.sample
!.env.template
!.env.dist
!.env.defaults
*.pem
*.key
*.p12
*.pfx
*.jks
*.keystore
*.ppk
*.kdbx
id_*
!id_*.*
!id_*/
.ssh/
.gnupg/
**/.aws/credentials
**/.aws/config
.azure/
**/.config/gcloud/
application_default_credentials.json
service-account*.json
service_account*.json
**/.docker/config.json
.dockercfg
**/.kube/config
kubeconfig
*.kubeconfig
.netrc
_netrc
.git-credentials
.pgpass
.my.cnf
.htpasswd
.pypirc
.vault-token
.terraformrc
credentials.tfrc.json
`

// withToken maps names of configuration files to words. If a file of that name contains one of the words, it contains a
// secret.
var withToken = map[string][]string{
	".npmrc":      {"_authToken", "_password", "_auth"},
	".yarnrc.yml": {"npmAuthToken", "npmAuthIdent"},
	".yarnrc":     {"_authToken", "_password", "_auth"},
}

// deny returns the rules in denied.
var deny = sync.OnceValue(func() globs { return parseIgnore([]byte(denied), false) })

// rules is the compiled form of Rules.
type rules struct {
	include, exclude globs
	deny             globs // patterns of secrets; if nil, no path looks like a secret
	max              int64 // maximum size in bytes of untracked files
}

// compile parses the globs and sets the defaults. It returns an error for the first invalid glob.
func (r Rules) compile() (rules, error) {
	c := rules{deny: deny(), max: r.MaxFileSize}
	if r.NoDenyList {
		c.deny = nil
	}
	if c.max <= 0 {
		c.max = DefaultMaxFileSize
	}
	for _, list := range []struct {
		from []string
		to   *globs
	}{{r.Include, &c.include}, {r.Exclude, &c.exclude}} {
		for _, glob := range list.from {
			before := len(*list.to)
			// The method add drops a rule that can match no path. Return an error for such a rule, because otherwise the option
			// would silently have no effect.
			if *list.to = list.to.add(strings.TrimPrefix(glob, "./"), false); len(*list.to) == before {
				return rules{}, fmt.Errorf("glob %q cannot match any path", glob)
			}
		}
	}
	return c, nil
}

// Validate returns an error that names the first invalid glob. The syntax of globs is that of gitignore(5).
func (r Rules) Validate() error {
	_, err := r.compile()
	return err
}

// secret reports whether path looks like a secret.
func (r *rules) secret(path string) bool { return r.deny != nil && r.deny.covers(path, false) }

// secretContent reports whether the file at path, whose name does not look like a secret, contains one of the words in
// withToken. The parameter head is the beginning of the file's contents.
func (r *rules) secretContent(path string, head []byte) bool {
	if r.deny == nil {
		return false
	}
	for _, word := range withToken[path[strings.LastIndexByte(path, '/')+1:]] {
		if bytes.Contains(head, []byte(word)) {
			return true
		}
	}
	return false
}
