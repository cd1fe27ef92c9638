package session

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// ErrNotCheckpoint reports a commit that is not a checkpoint.
var ErrNotCheckpoint = errors.New("commit is not a checkpoint")

// who is the author and committer of all commits that this package makes. It names artifactfs instead of a person,
// because the file system does not know which user or program made a change.
const who = "artifactfs <artifactfs@localhost>"

// Trailers of a checkpoint's message. Numbers are decimal; a trailer without a value is omitted.
const (
	trailerID      = "Afs-Checkpoint"
	trailerSession = "Afs-Session"
	trailerLane    = "Afs-Lane"
	trailerSegment = "Afs-Segment"
	trailerReason  = "Afs-Reason"
	trailerHead    = "Afs-Head"
	trailerBranch  = "Afs-Branch"
	trailerBase    = "Afs-Base"
	trailerPrev    = "Afs-Prev"
	trailerState   = "Afs-State"
	trailerChanged = "Afs-Changed"
	trailerBytes   = "Afs-Bytes"
	trailerLeft    = "Afs-Excluded"
)

// Encode returns the contents of the checkpoint's commit. The parameter parent is the previous checkpoint of the same
// segment, or the zero ID if there is none.
func (p Checkpoint) Encode(parent object.ID) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", p.Tree)
	if !parent.IsZero() {
		fmt.Fprintf(&b, "parent %s\n", parent)
	}
	fmt.Fprintf(&b, "parent %s\n", p.State)
	signed(&b, p.Time)
	message := strings.TrimSpace(strings.ReplaceAll(p.Message, "\x00", ""))
	if message == "" {
		message = autoSubject(p.Reason)
	}
	fmt.Fprintf(&b, "\n%s\n\n", message)
	for _, t := range []struct{ key, value string }{
		{trailerID, string(p.ID)}, {trailerSession, p.Session}, {trailerLane, p.Lane},
		{trailerSegment, strconv.Itoa(p.Segment)},
		{trailerReason, string(p.Reason)}, {trailerHead, p.Head.String()}, {trailerBranch, p.Branch},
		{trailerBase, p.Base.String()},
		{trailerPrev, string(p.Prev)}, {trailerState, p.State.String()}, {trailerChanged, strconv.FormatInt(p.Changed, 10)},
		{trailerBytes, strconv.FormatInt(p.Bytes, 10)}, {trailerLeft, strconv.FormatInt(p.Left, 10)},
	} {
		if t.value != "" {
			fmt.Fprintf(&b, "%s: %s\n", t.key, t.value)
		}
	}
	return b.Bytes()
}

// autoSubject returns the subject of a checkpoint for which the user wrote no message.
func autoSubject(r Reason) string { return "checkpoint: " + string(r) }

// signed writes the author and committer lines of a commit with the time at. The caller adds the empty line that ends
// the header.
func signed(b *bytes.Buffer, at time.Time) {
	for _, role := range []string{"author", "committer"} {
		fmt.Fprintf(b, "%s %s %d +0000\n", role, who, at.Unix())
	}
}

// ParseCheckpoint parses the contents of the commit id as a checkpoint. It does not verify that the contents have this
// ID. It returns ErrNotCheckpoint if the commit is not a checkpoint.
func ParseCheckpoint(f object.Format, id object.ID, content []byte) (Checkpoint, error) {
	info, err := object.ParseCommit(f, content)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("read checkpoint %s: %w", id, err)
	}
	_, text, _ := strings.Cut(string(content), "\n\n")
	message, trailers := splitTrailers(text)
	p := Checkpoint{Commit: id, Tree: info.Tree, Time: info.Committed.UTC()}
	bad := func(key string, err error) (Checkpoint, error) {
		return Checkpoint{}, fmt.Errorf("read checkpoint %s: %w: %s: %w", id, ErrNotCheckpoint, key, err)
	}
	if p.ID, err = ParseCheckpointID(trailers[trailerID]); err != nil {
		return bad(trailerID, err)
	}
	for key, to := range map[string]*object.ID{trailerHead: &p.Head, trailerBase: &p.Base, trailerState: &p.State} {
		if v := trailers[key]; v != "" {
			if *to, err = object.ParseIDOf(f, v); err != nil {
				return bad(key, err)
			}
		}
	}
	// The State has to be a parent of the checkpoint, so that the State stays reachable as long as the checkpoint.
	if len(info.Parents) == 0 || info.Parents[len(info.Parents)-1] != p.State || len(info.Parents) > 2 {
		return bad(trailerState, errors.New("state commit is not the last parent, or there are more than two parents"))
	}
	for key, to := range map[string]*int64{trailerChanged: &p.Changed, trailerBytes: &p.Bytes, trailerLeft: &p.Left} {
		if *to, err = parseCount(trailers[key]); err != nil {
			return bad(key, err)
		}
	}
	segment, err := parseCount(trailers[trailerSegment])
	if err != nil || segment > maxSegment {
		return bad(trailerSegment, errors.Join(err, errors.New("invalid segment number")))
	}
	p.Segment = int(segment)
	if prev := trailers[trailerPrev]; prev != "" {
		if p.Prev, err = ParseCheckpointID(prev); err != nil {
			return bad(trailerPrev, err)
		}
	}
	p.Session, p.Lane, p.Branch, p.Reason =
		trailers[trailerSession], trailers[trailerLane], trailers[trailerBranch], Reason(trailers[trailerReason])
	// If the message is the text of autoSubject, which Encode writes in place of an empty message, the user wrote no
	// message.
	if message != autoSubject(p.Reason) {
		p.Message = message
	}
	return p, nil
}

// CheckpointParent returns the commit of the previous checkpoint of the same segment, or the zero ID if there is none.
// The parameter content is the contents of a checkpoint's commit.
func CheckpointParent(f object.Format, content []byte) (object.ID, error) {
	info, err := object.ParseCommit(f, content)
	if err != nil {
		return object.ID{}, err
	}
	if len(info.Parents) < 2 {
		return object.ID{}, nil
	}
	return info.Parents[0], nil
}

// maxSegment is the highest number that SegmentRef formats with six digits.
const maxSegment = 999_999

// parseCount parses a decimal number in a checkpoint trailer. It returns 0 for an empty text, and an error for a
// negative number.
func parseCount(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n < 0 {
		err = errors.New("number in a checkpoint trailer is negative")
	}
	return n, err
}

// splitTrailers splits the message of a checkpoint's commit into the user's message and the trailers, which are always
// the last paragraph. Earlier paragraphs belong to the user, even if they look like trailers.
func splitTrailers(text string) (message string, trailers map[string]string) {
	text = strings.TrimSuffix(text, "\n")
	last := text
	if i := strings.LastIndex(text, "\n\n"); i >= 0 {
		message, last = text[:i], text[i+2:]
	}
	trailers = map[string]string{}
	for line := range strings.SplitSeq(last, "\n") {
		if key, value, ok := strings.Cut(line, ": "); ok {
			trailers[key] = value
		}
	}
	return message, trailers
}
