package capture

import (
	"bytes"
	"fmt"
	"strings"
)

// denied are names that look like secrets, in the syntax of gitignore(5). What git tracks already is no secret any more.
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

// withToken are names of files that are secrets if one of these words is in them.
var withToken = map[string][]string{
	".npmrc":      {"_authToken", "_password", "_auth"},
	".yarnrc.yml": {"npmAuthToken", "npmAuthIdent"},
	".yarnrc":     {"_authToken", "_password", "_auth"},
}

var deny = parseIgnore([]byte(denied), false)

// rules are Rules in the form in which they are asked.
type rules struct {
	include, exclude globs
	deny             globs // nil: nothing looks like a secret
	max              int64
}

func (r Rules) compile() (rules, error) {
	c := rules{deny: deny, max: r.MaxFileSize}
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
			if *list.to = list.to.add(strings.TrimPrefix(glob, "./"), false); len(*list.to) == before {
				return rules{}, fmt.Errorf("%q is no glob: nothing can match it", glob)
			}
		}
	}
	return c, nil
}

// Validate says what is wrong with the globs, whose syntax is that of gitignore(5).
func (r Rules) Validate() error {
	_, err := r.compile()
	return err
}

// secret says whether a path looks like a secret.
func (r *rules) secret(path string) bool { return r.deny != nil && r.deny.covers(path, false) }

// secretContent says whether a file that is no secret by its name is one by its content; the bytes are its beginning.
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
