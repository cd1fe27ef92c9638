package agenthook

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// target is the place at which the files of a conversation are written.
type target struct {
	in     *os.Root              // directory to which the names of files are relative
	root   string                // root of the mount
	inside func(dir string) bool // reports whether a directory is in the mount
	state  *stored               // state of the conversation in the mount
}

// place writes one file of the conversation, and adds to the state what of it is stored.
func (t target) place(f *rememberedFile) (Outcome, error) {
	there, err := readFile(t.in, f.name)
	exists := err == nil
	if err := missingIsFine(err); err != nil {
		return "", err
	}
	s := t.state
	var outcome Outcome
	shared := int64(0) // size of the part of the file that is stored
	if appended(f.name) {
		outcome, there, shared, err = t.extend(f, there, exists)
		s.Diverged = s.Diverged || outcome == MemoryNewer && shared < 0
	} else if outcome = MemoryNewer; !exists && len(f.lines) > 0 {
		there, outcome = f.lines[0], MemoryPlaced
		if err = writeNew(t.in, f.name, there); errors.Is(err, fs.ErrExist) {
			there, outcome, err = nil, MemoryNewer, nil // the agent has just written it
		}
	}
	if err != nil {
		return "", err
	}
	m := mark{Offset: max(shared, 0)}
	switch {
	case appended(f.name) && shared < 0:
		m = s.Files[f.name] // it may fit later
	case appended(f.name):
		m.Sum = lastSum(bytes.NewReader(there), shared)
	default:
		m = f.storedWhole(there, s.Files[f.name])
	}
	s.Files[f.name], s.Bytes = m, s.Bytes+m.Offset
	return outcome, nil
}

// storedWhole returns the mark of a file that is stored as a whole. there are the contents of the file of this host,
// and m is its mark before. If the hooks have stored another version of the file than this one, they store this one
// later.
func (f *rememberedFile) storedWhole(there []byte, m mark) mark {
	same := len(f.lines) > 0 && (bytes.Equal(there, f.lines[0]) ||
		strings.Join(pieces(redactFile(there)), "") == string(f.lines[0]))
	if same || m.Sum == "" && m.Text == "" {
		return mark{Offset: int64(len(there)), Sum: sumOf(there)}
	}
	return m
}

// extend writes the lines that are missing at the end of the file. It returns the contents of the file, and the size of
// its part that is stored; -1 if the session must not get more of the file of this host: both have different
// continuations, or the file must not get the lines of the session.
func (t target) extend(f *rememberedFile, there []byte, exists bool) (outcome Outcome, text []byte, shared int64,
	err error) {
	same, shared, skipped := f.common(there)
	stored := t.state.Files[f.name]
	fits := stored.fits(there)
	if fits && stored.Left { // the session has nothing of the last lines before the mark
		shared = max(shared, stored.Offset)
	}
	switch whole := shared == int64(len(there)); {
	case exists && same == len(f.lines) && whole:
		return MemoryCurrent, there, shared, nil
	case same == len(f.lines) && exists:
		return MemoryNewer, there, shared, nil
	// Only this host has continued the conversation, so the session has the file as far as the hooks have stored it.
	case fits && f.writer == t.state.Writer:
		return MemoryNewer, there, stored.Offset, nil
	case !whole, skipped && !fits, exists && !t.mayAppend(f, there):
		return MemoryNewer, there, -1, nil
	}
	for _, l := range f.lines[same:] {
		text = append(append(text, f.agent.editDirs(l, t.root)...), '\n')
	}
	outcome = MemoryUpdated
	if exists {
		err = appendTo(t.in, f.name, int64(len(there)), text)
	} else {
		outcome, err = MemoryPlaced, writeNew(t.in, f.name, text)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, errChanged) { // an agent is writing it
		return MemoryNewer, there, -1, nil
	}
	text = append(there, text...)
	return outcome, text, int64(len(text)), err
}

// mayAppend reports whether lines of the session may be appended to a file that has the contents there. All projects
// share the directory of codex, so the file may be that of another mount, whose session would get the lines: the file
// must have begun in this mount, or the session must have lines of it that the hooks of this mount have stored.
func (t target) mayAppend(f *rememberedFile, there []byte) bool {
	if f.agent != Codex {
		return true
	}
	if _, stored := f.ends[t.state.Writer]; stored {
		return true
	}
	dir := firstDir(bytes.NewReader(there))
	return dir != "" && t.inside(dir)
}

// errChanged means that a file has changed since it was read.
var errChanged = errors.New("the file has changed")

// appendTo appends the text to a file whose size must be size. It does not replace the file, because a running agent
// may have it open.
func appendTo(in *os.Root, name string, size int64, text []byte) error {
	f, err := in.OpenFile(name, os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != size {
		err = errChanged
	}
	if err == nil {
		_, err = f.Write(text)
	}
	return errors.Join(err, f.Close())
}

// readFile returns the contents of a regular file.
func readFile(in *os.Root, name string) ([]byte, error) {
	file, err := in.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAtMost(file, 4*maxMemoryConversation)
}

func readAtMost(f *os.File, limit int64) ([]byte, error) {
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, errors.New("not a regular file"))
	}
	return disk.ReadLimited(f, limit)
}

// common returns the number of lines at the beginning of the file that text has, apart from secrets and from working
// directories, and the size of text up to the end of these lines. If the file lacks lines, because they were left out,
// erased or expired, text may have others between them; skipped reports whether it has.
func (f *rememberedFile) common(text []byte) (lines int, size int64, skipped bool) {
	var want []byte
	at, others := int64(0), false
	for lines < len(f.lines) {
		if want == nil {
			want = f.agent.editDirs(f.lines[lines], "")
		}
		line, rest, ok := bytes.Cut(text, []byte("\n"))
		if !ok {
			break
		}
		at, text = at+int64(len(line))+1, rest
		switch {
		case f.stores(line, want):
			lines, size, skipped, want = lines+1, at, skipped || others, nil
		case !f.partial:
			return lines, size, false
		default:
			others = true
		}
	}
	return lines, size, skipped
}

// stores reports whether the line of a file of this host is stored as the line want, in which all working directories
// are empty.
func (f *rememberedFile) stores(line, want []byte) bool {
	clean, _, err := transcript.RedactJSON(line)
	if err != nil {
		return false
	}
	if bytes.Equal(f.agent.editDirs(unescape(clean), ""), want) {
		return true
	}
	var head, wanted geminiHead
	if f.agent == Gemini && json.Unmarshal(line, &head) == nil && head.Hash != "" &&
		json.Unmarshal(want, &wanted) == nil && wanted.Hash != "" { // withGeminiHead may have made the line
		return head.Session == wanted.Session
	}
	if len(line) <= maxPiece {
		return false
	}
	// The parts of a long line were redacted again, as texts.
	var long bytes.Buffer
	err = json.Compact(&long, []byte(strings.Join(pieces(clean), "")))
	return err == nil && bytes.Equal(f.agent.editDirs(unescape(long.Bytes()), ""), want)
}

// writeNew writes a file that must not exist, readable only for the user. No other program sees a part of it.
func writeNew(in *os.Root, name string, text []byte) error {
	if err := in.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	temp := name + "." + rand.Text()
	f, err := in.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = in.Link(temp, name)
	}
	return errors.Join(err, in.Remove(temp))
}
