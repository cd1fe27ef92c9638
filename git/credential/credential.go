// Package credential makes the git commands in a mount use the mount's login. git runs a credential helper (Ask),
// which sends git's question to a socket in the git directory, where the daemon answers (Serve). So the secret never
// appears in a configuration, environment or command line: it is passed from the daemon's memory through the socket
// and a pipe to git.
//
// The daemon answers only processes of the owner of the git directory, of root and of the daemon's own user.
//
// The messages are those of git's credential protocol (git-credential(1), "INPUT/OUTPUT FORMAT"),
// after a line with git's operation. An answer may contain a line "error=TEXT", which the helper
// prints for the user.
package credential

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/transport"
)

// socketName is the name of the socket in a git directory at which questions are answered.
const socketName = "artifactfs-credential"

// maxMessage is the maximum size of a question or an answer, in bytes.
const maxMessage = 256 << 10

// These are the operations of git (gitcredentials(7), "CUSTOM HELPERS").
const (
	opGet   = "get"
	opStore = "store" // the server has accepted the login
	opErase = "erase" // the server has refused the login
)

// message is one question of git, or its answer.
type message struct {
	// op is git's operation in a question; "" in an answer.
	op             string
	question       transport.Question
	secret         string // secret that was accepted (store) or refused (erase)
	user, password string
	// scheme and value form an Authorization header, for git versions that accept one.
	scheme, value string
	// failure is the text of an error for the user.
	failure string
}

// errMalformed means that a message breaks the format or is too long.
var errMalformed = errors.New("malformed credential message")

// readMessage reads lines up to an empty line or the end of r. whole reports whether the empty line was read. Unknown
// keys are skipped, as the protocol requires.
func readMessage(r io.Reader) (m message, whole bool, err error) {
	limited := &io.LimitedReader{R: r, N: maxMessage}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxMessage)
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), "=")
		if lines.Text() == "" {
			return m, true, nil
		}
		if !ok || strings.ContainsAny(value, "\x00\r") {
			return m, false, errMalformed
		}
		m.set(key, value)
	}
	if err := lines.Err(); err != nil {
		return m, false, fmt.Errorf("read credential message: %w", err)
	}
	// The message is longer than maxMessage.
	if limited.N == 0 {
		return m, false, errMalformed
	}
	return m, false, nil
}

// set stores the value of the line with the given key. In a store or an erase, git sends the secret under the keys that
// an answer to a get has.
func (m *message) set(key, value string) {
	switch key {
	case "op":
		m.op = value
	case "protocol":
		m.question.Protocol = value
	case "host":
		m.question.Host = value
	case "path":
		m.question.Path = value
	case "username":
		m.user = value
	case "password":
		m.password = value
	case "authtype":
		m.scheme = value
	case "credential":
		m.value = value
	case "wwwauth[]":
		if value == "" { // an empty value clears the list
			m.question.Challenges = nil
			break
		}
		m.question.Challenges = append(m.question.Challenges, value)
	case "capability[]":
		m.question.Schemes = m.question.Schemes || value == "authtype"
	case "error":
		m.failure = value
	}
	m.question.User, m.secret = m.user, m.password
	if m.scheme != "" {
		m.secret = m.value
	}
}

// lines returns the message in git's format, without empty values.
func (m message) lines() []byte {
	var b strings.Builder
	line := func(key, value string) {
		// A value with a line feed could inject further lines, so it is left out.
		if value != "" && !strings.ContainsAny(value, "\r\n\x00") {
			fmt.Fprintf(&b, "%s=%s\n", key, value)
		}
	}
	line("op", m.op)
	if m.question.Schemes {
		line("capability[]", "authtype")
	}
	line("protocol", m.question.Protocol)
	line("host", m.question.Host)
	line("path", m.question.Path)
	line("authtype", m.scheme)
	line("credential", m.value)
	line("username", m.user)
	line("password", m.password)
	for _, c := range m.question.Challenges {
		line("wwwauth[]", c)
	}
	line("error", m.failure)
	b.WriteString("\n")
	return []byte(b.String())
}
