package control

import (
	"strings"
)

// SplitCheckpoint cuts the name of a checkpoint into the session and the checkpoint within it:
// "fix-login@before-rename" is checkpoint before-rename of session fix-login. A session's name
// holds no "@", so the first one with something before it is the separator; session is "" if there
// is none. "fix-login@", "fix-login@@" and "fix-login@~2" count from the newest, as "@" and "@~2"
// do within a session.
func SplitCheckpoint(word string) (session, checkpoint string) {
	session, checkpoint, ok := strings.Cut(word, "@")
	switch {
	case !ok || session == "":
		return "", word
	case checkpoint == "" || checkpoint[0] == '~' || checkpoint[0] == '{':
		checkpoint = "@" + checkpoint
	}
	return session, checkpoint
}

// sessionFragment begins the fragment of a link.
const sessionFragment = "session="

// Link names a session, and perhaps a checkpoint of it, on a session remote:
// "URL#session=NAME@CHECKPOINT". A link is all that it takes to look at the work, to fork it or to
// resume it.
type Link struct {
	Remote     string // URL or path of the session remote
	Session    string
	Checkpoint string // "": the newest
}

// String is the reverse of ParseLink.
func (l Link) String() string {
	text := l.Remote + "#" + sessionFragment + l.Session
	if l.Checkpoint != "" {
		text += "@" + l.Checkpoint
	}
	return text
}

// ParseLink parses a link; ok is false for a word without a fragment. A fragment that does not name
// a session is an error: without it, the link would mean something else. The error does not repeat
// the URL, which may hold a secret.
func ParseLink(word string) (l Link, ok bool, err error) {
	at := strings.LastIndexByte(word, '#')
	if at < 0 {
		return Link{}, false, nil
	}
	l.Remote = word[:at]
	name, known := strings.CutPrefix(word[at+1:], sessionFragment)
	if !known || l.Remote == "" {
		return Link{}, false, &Error{Code: ExitUsage, Verb: "read", Object: "#" + word[at+1:], Cause: "unknown fragment of a URL",
			Hint: "URL#session=NAME names a session on a session remote, URL#session=NAME@CHECKPOINT a checkpoint of it"}
	}
	if l.Session, l.Checkpoint = SplitCheckpoint(name); l.Session == "" {
		l.Session, l.Checkpoint = l.Checkpoint, ""
	}
	if err := ValidSession(l.Session); err != nil {
		return Link{}, false, err
	}
	return l, true, nil
}

// ShellWord quotes a word for a command line that a person copies into a shell.
func ShellWord(w string) string {
	if w != "" && !strings.ContainsFunc(w, func(r rune) bool { return !strings.ContainsRune(plainLetters, r) }) {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// plainLetters mean nothing to a shell.
const plainLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+=,"
