// Package sessionlink parses the names by which users refer to sessions and checkpoints: SESSION@CHECKPOINT and links
// to session remotes.
package sessionlink

import (
	"strings"

	"github.com/artifactfs/artifactfs/control"
)

// Split splits the name of a checkpoint into the session and the name within that session: "fix-login@before-rename" is
// the checkpoint before-rename of the session fix-login. Session names contain no "@", so the first "@" separates the
// two. If the first "@" is at the start of word, session is "" and checkpoint is the whole word. The checkpoints "@"
// and "@~2" are counted back from the newest checkpoint of a session; with a session name, they are written
// "fix-login@" (or "fix-login@@") and "fix-login@~2".
func Split(word string) (session, checkpoint string) {
	session, checkpoint, ok := strings.Cut(word, "@")
	switch {
	case !ok || session == "":
		return "", word
	case checkpoint == "" || checkpoint[0] == '~' || checkpoint[0] == '{':
		checkpoint = "@" + checkpoint
	}
	return session, checkpoint
}

// sessionFragment is the beginning of a link's fragment, the part after "#".
const sessionFragment = "session="

// Link identifies a session on a session remote, and optionally a checkpoint of it. Its text is
// "URL#session=NAME@CHECKPOINT". The link is sufficient to show the session, to fork it or to resume it.
type Link struct {
	Remote     string // URL or path of the session remote
	Session    string // name of the session
	Checkpoint string // name of the checkpoint; "": the newest checkpoint
}

// String returns the text of the link, which Parse accepts.
func (l Link) String() string {
	text := l.Remote + "#" + sessionFragment + l.Session
	if l.Checkpoint != "" {
		text += "@" + l.Checkpoint
	}
	return text
}

// Parse parses the text of a link. ok is false if word has no fragment (the part after "#"). Parse returns an error if
// the fragment does not name a session, because the URL without its fragment would refer to something else. The error
// does not contain the URL, which may contain a secret.
func Parse(word string) (l Link, ok bool, err error) {
	at := strings.LastIndexByte(word, '#')
	if at < 0 {
		return Link{}, false, nil
	}
	l.Remote = word[:at]
	name, known := strings.CutPrefix(word[at+1:], sessionFragment)
	if !known || l.Remote == "" {
		return Link{}, false, &control.Error{Code: control.ExitUsage, Verb: "read", Object: "#" + word[at+1:],
			Cause: "unknown fragment in the URL",
			Hint:  "type URL#session=NAME for a session on a session remote, or URL#session=NAME@CHECKPOINT for one of its checkpoints"}
	}
	if l.Session, l.Checkpoint = Split(name); l.Session == "" {
		l.Session, l.Checkpoint = l.Checkpoint, ""
	}
	if err := control.ValidSession(l.Session); err != nil {
		return Link{}, false, err
	}
	return l, true, nil
}
