package imports

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
)

// credentials are sent to another server. The zero value stands for none.
type credentials struct{ user, password string }

// maxSecret is the size of a file with credentials.
const maxSecret = 64 << 10

// secretName is the form of the names of secrets and of namespaces as parts of a path.
var secretName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// secret returns the credentials for a URL from the file NAMESPACE/NAME in the directory of secrets. The file has lines
// https://USER:PASSWORD@HOST[/PATH], as git-credential-store(1) writes them. Credentials are used only for the host of their line, so
// that a user who may use a secret, but not read it, cannot have it sent elsewhere.
func (i *Importer) secret(namespace, name string, u *url.URL) (credentials, error) {
	if name == "" {
		return credentials{}, nil
	}
	missing := fmt.Errorf("%w: there is no secret %.128q for this host", ErrAuth, name)
	if i.o.Secrets == "" || !secretName.MatchString(name) || !secretName.MatchString(namespace) {
		return credentials{}, missing
	}
	root, err := os.OpenRoot(i.o.Secrets)
	if err != nil {
		return credentials{}, missing
	}
	defer root.Close()
	f, err := root.Open(path.Join(namespace, name))
	if err != nil {
		return credentials{}, missing
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret))
	if err != nil {
		return credentials{}, missing
	}
	c, err := pick(string(text), u)
	if err != nil {
		return credentials{}, missing
	}
	return c, nil
}

var errNoLine = errors.New("no line for the host")

// pick returns the credentials of the line with the longest path that contains the URL.
func pick(text string, u *url.URL) (credentials, error) {
	var c credentials
	longest := -1
	for line := range strings.Lines(text) {
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
	if longest < 0 {
		return credentials{}, errNoLine
	}
	return c, nil
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
