package agenthook

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/lazy"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// The memory of an agent consists of the files in which it stores its conversations, outside of the mount. If the user
// has asked for it (KeepMemory), the hooks append new lines of these files to the memory of the session, and
// MemoryFiles has the files on another host. Files whose names end in .jsonl only grow, line by line; others are
// replaced as a whole.

// MaxMemory is the maximum size in bytes of the files of all conversations of a session.
const MaxMemory = 256 << 20

const (
	maxMemoryLine         = 16 << 20 // maximum size in bytes of a line, or of a file that is stored as a whole
	maxMemoryConversation = 64 << 20 // maximum size in bytes of the files of a conversation
	// maxPiece is the maximum size in bytes of a record without its other members. A request may encode a byte as six.
	maxPiece = 128 << 10
	memoryID = `[0-9a-f]{8}` + memoryRest
	// memoryRest is the rest of an id. The file of gemini has only the first part in its name.
	memoryRest = `(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`
)

// memoryNames contains, for each agent whose memory is kept, a regular expression that matches the whole path of each
// of its files, relative to the directory of memoryHome. One of its groups matches the conversation. No path that it
// matches leads out of the directory. Notes that several conversations share are not kept: they do not belong to one
// session.
var memoryNames = map[Agent]func() *regexp.Regexp{
	Claude: lazy.Regexp(`\A(` + memoryID + `)(?:\.jsonl|/(?:subagents|tool-results)/\w[\w.-]{0,127})\z`),
	Codex:  lazy.Regexp(`\A\d{4}/\d\d/\d\d/rollout-\d{4}(?:-\d\d){2}T\d\d(?:-\d\d){2}-(` + memoryID + `)\.jsonl\z`),
	Gemini: lazy.Regexp(`\A(?:` + geminiPrefix + `[\dT-]{1,40}-([0-9a-f]{8})|([0-9a-f]{8})` + memoryRest +
		`/\w[\w.-]{0,127})\.jsonl\z`),
}

// KeepsMemory reports whether the memory of the agent can be kept.
func KeepsMemory(a Agent) bool { return memoryNames[a] != nil }

// memoryDir is the directory, relative to the git directory, with the state of the memory of agents. The file modeFile
// in it contains a MemoryMode, and other files for each conversation which part of its files is stored (stored).
const memoryDir, modeFile = "artifactfs-memory", "mode"

// MemoryMode is what is done with the memory of agents in a session on this host.
type MemoryMode string

const (
	MemoryUnset MemoryMode = ""      // nobody has decided it, so nothing is stored
	MemoryOff   MemoryMode = "off"   // the user does not want it to be stored
	MemoryKeep  MemoryMode = "keep"  // it is stored; what the session has is not placed, because others may have made it
	MemoryPlace MemoryMode = "place" // it is stored, and placed for the agents of this host
)

// KeepMemory makes the hooks keep the memory of agents in the session of a git directory, or not.
func KeepMemory(gitDir string, mode MemoryMode) error {
	if err := os.Mkdir(filepath.Join(gitDir, memoryDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return disk.WriteFileUnsynced(filepath.Join(gitDir, memoryDir, modeFile), []byte(mode), 0o600)
}

// MemoryModeOf returns what is done with the memory of agents in the session of a git directory.
func MemoryModeOf(gitDir string) MemoryMode {
	text, err := disk.ReadRegular(filepath.Join(gitDir, memoryDir, modeFile), 64)
	if mode := MemoryMode(text); err == nil && (mode == MemoryKeep || mode == MemoryPlace) {
		return mode
	} else if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return MemoryOff
	}
	return MemoryUnset
}

// Kept reports whether the hooks store memory.
func (m MemoryMode) Kept() bool { return m == MemoryKeep || m == MemoryPlace }

// MemoryKept reports whether the memory of agents is kept in the session of a git directory, and for each agent how
// many bytes of its files are stored, and how many were left out because of a limit.
func MemoryKept(gitDir string) (kept bool, sizes map[Agent]MemorySize) {
	files, err := os.ReadDir(filepath.Join(gitDir, memoryDir))
	if err != nil || !MemoryModeOf(gitDir).Kept() {
		return false, nil
	}
	sizes = map[Agent]MemorySize{}
	for _, f := range files {
		var s stored
		if s.load(filepath.Join(gitDir, memoryDir, f.Name())) == nil && s.Agent != "" {
			sum := sizes[s.Agent]
			sizes[s.Agent] = MemorySize{sum.Conversations + 1, sum.Bytes + s.Bytes, sum.Dropped + s.Dropped}
		}
	}
	return true, sizes
}

// MemorySize is the size of the memory of an agent in a session, as far as it was stored or placed on this host.
type MemorySize struct {
	Conversations int   `json:"conversations"`
	Bytes         int64 `json:"bytes"`
	Dropped       int64 `json:"dropped"` // number of bytes that were left out because of a limit
}

// memoryRecord is the JSON form of a line of a file, or of a part of it, in the memory of a session. Erase reads the
// members agent_session and time. doc/internals/sessions/agent-memory.md documents the members.
type memoryRecord struct {
	Type    string          `json:"type"` // "memory"
	Agent   Agent           `json:"agent"`
	Session string          `json:"agent_session"`
	File    string          `json:"file"`           // path of the file, which memoryNames matches
	Writer  string          `json:"writer"`         // see stored
	Offset  int64           `json:"offset"`         // offset of the line in the file
	Size    int64           `json:"size"`           // size of the line in the file, with the newline
	Time    string          `json:"time,omitempty"` // time at which the agent has written the line
	Line    json.RawMessage `json:"line,omitempty"`

	// A long line, and a file that is stored as a whole, are in several records. A record with neither Line nor Parts
	// stands for a line that was left out.
	Sum   string `json:"sum,omitempty"`   // hash of the text of all parts
	Part  int    `json:"part,omitempty"`  // number of the part, counted from 0
	Parts int    `json:"parts,omitempty"` // number of parts
	Text  string `json:"text,omitempty"`
}

// SendMemory calls the function send with records of the lines that the agent has written to the files of its
// conversation since the last call, in batches, and stores after each batch how far it has come. It does nothing unless
// the memory is kept (KeepMemory), and the event names the file of the conversation. It does nothing either if the
// conversation has begun outside of the mount (root is its root, and inside reports whether a directory is in it), and
// is not one of the session that codex continues. It ends when the function late returns true; the next call continues.
func SendMemory(gitDir, root string, inside func(dir string) bool, e Event, late func() bool,
	send func(lines []string) error) error {
	if !MemoryModeOf(gitDir).Kept() {
		return nil
	}
	home, conversation := memoryHome(e.Agent, e.File)
	if home == "" {
		return nil
	}
	began := belongs(e, home, root, inside)
	if !began && e.Agent != Codex {
		return nil
	}
	unlock, err := lockMemory(gitDir, late)
	if unlock == nil {
		return err
	}
	defer unlock()
	s, err := loadStored(gitDir, e.Agent, conversation)
	if err != nil {
		return err
	}
	if s.Diverged || !began && !s.continues(home, e.File) {
		return nil
	}
	s.Here = true
	if err := s.save(); err != nil { // the name of the writer is stored before its first record
		return err
	}
	names := memoryFilesIn(home, conversation, e)
	for _, name := range names {
		if late() {
			return nil
		}
		t := tail{s: s, event: e, name: name, late: late, send: send}
		if err := t.sendFile(filepath.Join(home, name)); errors.Is(err, errLate) {
			return nil
		} else if err != nil {
			return fmt.Errorf("store %s: %w", name, err)
		}
	}
	return nil
}

// lockMemory waits until no other hook or command stores or places memory in the session of the git directory. unlock
// is nil if this took too long, or failed.
func lockMemory(gitDir string, late func() bool) (unlock func(), err error) {
	for {
		unlock, err = disk.TryLock(filepath.Join(gitDir, memoryDir, "lock"))
		if !errors.Is(err, disk.ErrLocked) {
			return unlock, err
		}
		if late() {
			return nil, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// tail sends the new part of one file.
type tail struct {
	s     *stored
	event Event
	name  string
	late  func() bool
	send  func(lines []string) error

	file  *os.File
	time  string // time of the newest line that has one
	batch []string
	size  int
	done  mark // what is stored after the batch
}

// sendFile sends the new part of the file at path.
func (t *tail) sendFile(path string) error {
	f, err := disk.OpenRegular(path, 0)
	if err != nil {
		return missingIsFine(err)
	}
	defer f.Close()
	t.file = f
	info, err := f.Stat()
	if err != nil {
		return err
	}
	t.done = t.s.Files[t.name]
	if !appended(t.name) {
		return t.whole(f, info)
	}
	from := t.done.Offset
	if from > info.Size() || from > 0 && t.done.Sum != lastSum(f, from) {
		from, t.done = 0, mark{} // the agent has written the file again
	}
	b := bufio.NewReaderSize(io.NewSectionReader(f, from, info.Size()-from), 64<<10)
	for !t.late() {
		line, size, err := wholeLine(b)
		if errors.Is(err, io.EOF) { // the agent may still be writing the last line
			break
		}
		if err == nil {
			err = t.line(line, from, size)
		}
		if err != nil {
			return err
		}
		from += size
	}
	return t.flush()
}

// wholeLine reads a line without its newline. If the line is longer than maxMemoryLine, text is only its beginning.
// size is the number of bytes with the newline. It returns io.EOF for a line without a newline.
func wholeLine(b *bufio.Reader) (text []byte, size int64, err error) {
	for {
		part, err := b.ReadSlice('\n')
		if size += int64(len(part)); size <= maxMemoryLine {
			text = append(text, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(text, []byte("\n")), size, err
		}
	}
}

// appended reports whether the agent only appends lines to the file.
func appended(name string) bool { return strings.HasSuffix(name, ".jsonl") }

// lastSum returns a hash of the last bytes of a file before an offset.
func lastSum(f io.ReaderAt, offset int64) string {
	last := make([]byte, min(offset, 1<<10))
	if _, err := f.ReadAt(last, offset-int64(len(last))); err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return sumOf(last)
}

func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}

// whole sends a file as a whole, if it has changed.
func (t *tail) whole(f *os.File, info os.FileInfo) error {
	if info.Size() > maxMemoryLine {
		return nil
	}
	text, err := disk.ReadLimited(f, maxMemoryLine)
	if err != nil {
		return err
	}
	sum := sumOf(text)
	if len(text) == 0 || sum == t.done.Sum || t.s.full(int64(len(text))) {
		return nil
	}
	t.time = info.ModTime().UTC().Format(time.RFC3339Nano)
	if err := t.parts(redactFile(text), 0, int64(len(text))); err != nil {
		return err
	}
	t.done = mark{Offset: int64(len(text)), Sum: sum}
	return t.flush()
}

// line adds a line of the file to the batch. size is the number of bytes of the line in the file; text is shorter if
// the line is too long to be stored.
func (t *tail) line(text []byte, offset, size int64) error {
	var stamp struct {
		Time string `json:"timestamp"`
	}
	_ = json.Unmarshal(text, &stamp) // a line without a time has that of the line before
	t.time = cmp.Or(limit(stamp.Time, maxTime), t.time)
	var compact bytes.Buffer
	err := json.Compact(&compact, text)
	before := t.done.Left
	t.done.Left = int64(len(text)) < size-1 || err != nil || t.s.full(size)
	switch {
	case t.done.Left && before:
		t.s.Dropped, err = t.s.Dropped+size, nil
	case t.done.Left:
		t.s.Dropped += size
		err = t.add(memoryRecord{Offset: offset, Size: size})
	case compact.Len() <= maxPiece: // the daemon removes the secrets
		t.s.Bytes += size
		err = t.add(memoryRecord{Offset: offset, Size: size, Line: compact.Bytes()})
	default:
		clean, _, _ := transcript.RedactJSON(compact.Bytes()) // it is valid
		err = t.parts(clean, offset, size)
	}
	t.done.Offset = offset + size
	if t.size >= maxPiece && err == nil {
		err = t.flush()
	}
	return err
}

// pieces cuts a text into parts that fit into a record. Secrets were removed before, so none is cut into two.
func pieces(text []byte) (parts []string) {
	for len(text) > 0 {
		n := min(len(text), maxPiece)
		for n < len(text) && n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		// The daemon removes secrets from each part, as from every string. Do the same here, so that the hash is right.
		part, _ := transcript.Redact(string(text[:n]))
		parts, text = append(parts, part), text[n:]
	}
	return parts
}

// errLate means that the time of an event has ended. The next event continues.
var errLate = errors.New("the time of the event has ended")

// parts sends a text that may be too long for one record, after the batch. It stores after each part how many were
// sent, so that the next event sends only the other ones if this event fails or ends before the last one.
func (t *tail) parts(text []byte, offset, size int64) error {
	if err := t.flush(); err != nil {
		return err
	}
	parts := pieces(text)
	sum := sumOf([]byte(strings.Join(parts, "")))
	if t.done.Text != sum {
		t.done.Text, t.done.Parts = sum, 0
	}
	for first := t.done.Parts; t.done.Parts < len(parts); {
		i := t.done.Parts
		if i > first && t.late() {
			return errLate
		}
		err := t.add(memoryRecord{Offset: offset, Size: size, Sum: sum, Part: i, Parts: len(parts), Text: parts[i]})
		if err == nil {
			err = t.post()
		}
		if err != nil {
			return err
		}
		t.done.Parts++
		t.s.Bytes += int64(len(parts[i]))
		if err := t.keep(); err != nil {
			return err
		}
	}
	t.done.Text, t.done.Parts = "", 0
	return nil
}

// add adds a record to the batch. It sends the batch first if the record does not fit.
func (t *tail) add(r memoryRecord) error {
	r.Type, r.Agent, r.Session, r.File, r.Time = "memory", t.event.Agent, t.event.Session, t.name, t.time
	r.Writer = t.s.Writer
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return err
	}
	if t.size > 0 && t.size+b.Len() > maxPiece {
		if err := t.post(); err != nil {
			return err
		}
	}
	t.batch, t.size = append(t.batch, b.String()), t.size+b.Len()
	return nil
}

// post sends the batch.
func (t *tail) post() error {
	if len(t.batch) == 0 {
		return nil
	}
	err := t.send(t.batch)
	t.batch, t.size = nil, 0
	return err
}

// flush sends the batch, and stores that everything up to t.done is stored.
func (t *tail) flush() error {
	if err := t.post(); err != nil {
		return err
	}
	if appended(t.name) && t.done.Offset > 0 {
		t.done.Sum = lastSum(t.file, t.done.Offset)
	}
	if t.s.Files[t.name] == t.done {
		return nil
	}
	return t.keep()
}

// keep stores that everything up to t.done is stored.
func (t *tail) keep() error {
	t.s.Files[t.name] = t.done
	return t.s.save()
}
