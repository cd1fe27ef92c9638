package imports

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/artifactfs/artifactfs/internal/lazy"
)

// credentials are the user and the password for another server. The zero value means that there are none.
type credentials struct{ user, password string }

// maxSecret is the maximum size of a file with credentials in bytes.
const maxSecret = 64 << 10

// secretName matches the allowed names of secrets and of namespaces, which become parts of a path.
var secretName = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// secret is the text of a file with credentials; "" for none. It has lines https://USER:PASSWORD@HOST[/PATH], as
// git-credential-store(1) writes them. Credentials are sent only to the scheme, host, port and path in their line, so
// that a user who may use a secret, but must not read it, cannot make the server send it elsewhere.
type secret string

// secret returns the secret NAMESPACE/NAME in the directory of secrets, which must contain credentials for the URL u.
// If name is "", it returns "".
func (i *Importer) secret(namespace, name string, u *url.URL) (secret, error) {
	if name == "" {
		return "", nil
	}
	missing := fmt.Errorf("%w: secret %.128q with credentials for this URL does not exist", ErrAuth, name)
	if i.o.Secrets == "" || !secretName().MatchString(name) || !secretName().MatchString(namespace) {
		return "", missing
	}
	root, err := os.OpenRoot(i.o.Secrets)
	if err != nil {
		return "", missing
	}
	defer root.Close()
	f, err := root.Open(path.Join(namespace, name))
	if err != nil {
		return "", missing
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret))
	if err != nil {
		return "", missing
	}
	if _, ok := secret(text).pick(u); !ok {
		return "", missing
	}
	return secret(text), nil
}

// pick returns the credentials in the line with the longest path that is a prefix of the path of the URL. ok is false
// if there is no such line.
func (s secret) pick(u *url.URL) (c credentials, ok bool) {
	longest := -1
	for line := range strings.Lines(string(s)) {
		l, err := url.Parse(strings.TrimSpace(line))
		if err != nil || l.User == nil || l.Scheme != u.Scheme || !strings.EqualFold(l.Host, u.Host) {
			continue
		}
		dir := strings.TrimRight(l.Path, "/")
		if len(dir) <= longest || u.Path != dir && !strings.HasPrefix(u.Path, dir+"/") {
			continue
		}
		password, _ := l.User.Password()
		if strings.ContainsAny(l.User.Username()+password, "\r\n\x00") || strings.Contains(l.User.Username(), ":") {
			continue
		}
		c, longest = credentials{l.User.Username(), password}, len(dir)
	}
	return c, longest >= 0
}

// authorize sets the credentials of a request to those that the secret has for the URL of the request. If there are
// none, it removes the credentials from the request.
func (s secret) authorize(r *http.Request) {
	at := *r.URL
	at.Path = strings.TrimSuffix(at.Path, infoRefs) // compare the path of the repository, which a line may name
	r.Header.Del("Authorization")
	if c, ok := s.pick(&at); ok {
		r.SetBasicAuth(c.user, c.password)
	}
}

// redact removes the credentials from a text.
func (c credentials) redact(text string) string {
	for _, s := range []string{c.password, url.QueryEscape(c.password), url.PathEscape(c.password)} {
		if s != "" {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	return text
}
