package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

const (
	maxRequest = 1 << 20  // bytes of a request line; room for thousands of pathspecs
	maxMessage = 16 << 20 // bytes of a message line; room for the status of ten thousand mounts
)

type op string

const (
	opMount    op = "mount"
	opUnmount  op = "unmount"
	opStatus   op = "status"
	opMounts   op = "mounts"
	opPrefetch op = "prefetch"
	opSwitch   op = "switch"
	opTrace    op = "trace"
	opShutdown op = "shutdown"
	opUpgrade  op = "upgrade"

	opCheckpoint    op = "checkpoint"
	opSync          op = "sync"
	opSessions      op = "sessions"
	opSessionLog    op = "session-log"
	opSessionShow   op = "session-show"
	opSessionDiff   op = "session-diff"
	opRestore       op = "restore"
	opFork          op = "fork"
	opSessionSet    op = "session-set"
	opSessionNote   op = "session-note"
	opSessionRecord op = "session-record"
	opSessionGC     op = "session-gc"
)

// timeless says that an operation is answered to askers of all versions from firstTimeless on: without it a daemon could not
// be replaced by a newer one.
func (o op) timeless() bool { return o == opStatus || o == opUpgrade }

const firstTimeless = 4

// request is the one line an asker sends.
type request struct {
	Version int             `json:"version"`
	Op      op              `json:"op"`
	Args    json.RawMessage `json:"args"`
}

// message is a line of the answer: exactly one of Progress, Trace, Result and Error.
type message struct {
	Version  int             `json:"version"`
	Progress *Progress       `json:"progress,omitempty"`
	Trace    *Trace          `json:"trace,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *Error          `json:"error,omitempty"`
}

// wireMount is the one place where a token is spelled out.
type wireMount struct {
	MountRequest
	Token string `json:"token,omitempty"`
}

// wireFork is a ForkRequest whose mount has its token.
type wireFork struct {
	ForkRequest
	Mount wireMount `json:"mount"`
}

type empty struct{}

func encodeRequest(o op, args any) ([]byte, error) {
	if v, ok := args.(interface{ validate() error }); ok {
		if err := v.validate(); err != nil {
			return nil, err
		}
	}
	switch r := args.(type) {
	case MountRequest:
		args = wireMount{r, string(r.Token)}
	case ForkRequest:
		args = wireFork{r, wireMount{r.Mount, string(r.Mount.Token)}}
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("encode %s request: %w", o, err)
	}
	line, err := json.Marshal(request{Protocol, o, raw})
	if err != nil {
		return nil, fmt.Errorf("encode %s request: %w", o, err)
	}
	if len(line) >= maxRequest {
		return nil, badRequest("%d bytes, limit is %d", len(line), maxRequest)
	}
	return append(line, '\n'), nil
}

// decodeRequest reads a request line. args is a MountRequest, UnmountRequest, PrefetchRequest, SwitchRequest,
// TraceRequest, UpgradeRequest, one of session.go, or empty{}.
// The version is looked at before anything else: another version's fields are none of our business.
func decodeRequest(line []byte) (o op, args any, err error) {
	var head struct {
		Version int             `json:"version"`
		Op      json.RawMessage `json:"op"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return "", nil, badRequest("not a JSON object of this protocol")
	}
	timeless := head.Version >= firstTimeless && (string(head.Op) == `"status"` || string(head.Op) == `"upgrade"`)
	if head.Version != Protocol && !timeless {
		return "", nil, badRequest("protocol %d, this daemon speaks %d", head.Version, Protocol)
	}
	var r request
	if err := strict(line, &r); err != nil {
		return "", nil, err
	}
	switch r.Op {
	case opMount:
		args, err = decodeMount(r.Args)
	case opUnmount:
		args, err = decodeArgs[UnmountRequest](r.Args)
	case opPrefetch:
		args, err = decodeArgs[PrefetchRequest](r.Args)
	case opSwitch:
		args, err = decodeArgs[SwitchRequest](r.Args)
	case opTrace:
		args, err = decodeArgs[TraceRequest](r.Args)
	case opUpgrade:
		args, err = decodeArgs[UpgradeRequest](r.Args)
	case opCheckpoint:
		args, err = decodeArgs[CheckpointRequest](r.Args)
	case opSync:
		args, err = decodeArgs[SyncRequest](r.Args)
	case opSessionLog:
		args, err = decodeArgs[SessionLogRequest](r.Args)
	case opSessionShow:
		args, err = decodeArgs[SessionShowRequest](r.Args)
	case opSessionDiff:
		args, err = decodeArgs[SessionDiffRequest](r.Args)
	case opRestore:
		args, err = decodeArgs[RestoreRequest](r.Args)
	case opFork:
		args, err = decodeFork(r.Args)
	case opSessionSet:
		args, err = decodeArgs[SessionSetRequest](r.Args)
	case opSessionNote:
		args, err = decodeArgs[SessionNoteRequest](r.Args)
	case opSessionRecord:
		args, err = decodeArgs[SessionRecordRequest](r.Args)
	case opSessionGC:
		args, err = decodeArgs[SessionGCRequest](r.Args)
	case opStatus, opMounts, opShutdown, opSessions:
		args = empty{}
		err = strict(r.Args, &empty{})
	default:
		err = badRequest("unknown operation %.40q", r.Op)
	}
	return r.Op, args, err
}

func decodeMount(raw []byte) (MountRequest, error) {
	var w wireMount
	if err := strict(raw, &w); err != nil {
		return MountRequest{}, err
	}
	w.MountRequest.Token = Secret(w.Token)
	return w.MountRequest, w.MountRequest.validate()
}

func decodeFork(raw []byte) (ForkRequest, error) {
	var w wireFork
	if err := strict(raw, &w); err != nil {
		return ForkRequest{}, err
	}
	w.ForkRequest.Mount = w.Mount.MountRequest
	w.ForkRequest.Mount.Token = Secret(w.Mount.Token)
	return w.ForkRequest, w.ForkRequest.validate()
}

func decodeArgs[T interface{ validate() error }](raw []byte) (T, error) {
	var args T
	if err := strict(raw, &args); err != nil {
		return args, err
	}
	return args, args.validate()
}

// strict decodes one JSON value, refusing fields v does not have and anything behind the value. Its error says
// what is wrong without quoting a value: one of them is a token.
func strict(raw []byte, v any) error {
	if !utf8.Valid(raw) {
		return badRequest("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrongType):
		return badRequest("field %q has the wrong type", wrongType.Field)
	case errors.As(err, &syntax), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return badRequest("not JSON")
	case err != nil: // only the unknown field is left, and its text is the field's name
		return badRequest("%v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badRequest("bytes behind the end")
	}
	return nil
}

func decodeMessage(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("read answer: %w", err)
	}
	n := 0
	for _, there := range []bool{m.Progress != nil, m.Trace != nil, m.Result != nil, m.Error != nil} {
		if there {
			n++
		}
	}
	if (m.Version == Protocol || m.Version >= firstTimeless) && n != 1 {
		return m, errors.New("read answer: not exactly one of progress, trace, result, error")
	}
	return m, nil
}

// readLine reads up to the newline, which it leaves off. io.EOF only if there was nothing at all.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return nil, fmt.Errorf("line of more than %d bytes", limit)
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
