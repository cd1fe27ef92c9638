package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxRequest = 1 << 20  // maximum size of a request line in bytes; large enough for thousands of pathspecs
	maxMessage = 16 << 20 // maximum size of a message line in bytes; large enough for the status of ten thousand mounts
)

// op is the name of an operation in a request.
type op string

const (
	opMount    op = "mount"
	opUnmount  op = "unmount"
	opStatus   op = "status"
	opMounts   op = "mounts"
	opPrefetch op = "prefetch"
	opSwitch   op = "switch"
	opRefresh  op = "refresh"
	opTrace    op = "trace"
	opShutdown op = "shutdown"
	opUpgrade  op = "upgrade"

	opCheckpoint    op = "checkpoint"
	opSync          op = "sync"
	opSessions      op = "sessions"
	opSessionsOn    op = "sessions-on"
	opMerge         op = "merge"
	opSessionLog    op = "session-log"
	opSessionShow   op = "session-show"
	opSessionDiff   op = "session-diff"
	opRestore       op = "restore"
	opFork          op = "fork"
	opSessionSet    op = "session-set"
	opSessionNote   op = "session-note"
	opSessionRecord op = "session-record"
	opSessionGC     op = "session-gc"
	opSessionDelete op = "session-delete"
	opSessionBack   op = "session-undelete"
	opSessionTrash  op = "session-trash"

	opCredentialSet     op = "credential-set"
	opSessionTranscript op = "session-transcript"
	opSessionErase      op = "session-erase"
	opSessionFacts      op = "session-facts"
	opSessionCompare    op = "session-compare"
	opSessionApprove    op = "session-approve"
	opSessionApprovals  op = "session-approvals"
	opSessionPolicy     op = "session-policy"

	opSessionAnnotate    op = "session-annotate"
	opSessionAnnotations op = "session-annotations"

	opCacheGet       op = "cache-get"
	opCachePut       op = "cache-put"
	opCacheDelete    op = "cache-delete"
	opCacheKeys      op = "cache-keys"
	opCacheGC        op = "cache-gc"
	opSessionPromote op = "session-promote"
	opSessionSummary op = "session-summary"
	opSessionLocks   op = "session-locks"
)

// request is the line that a client sends on a connection.
type request struct {
	Version int             `json:"version"`         // newest version of the protocol that the client supports
	Op      op              `json:"op"`              // operation
	Args    json.RawMessage `json:"args"`            // arguments of the operation; missing: all defaults
	Needs   []string        `json:"needs,omitempty"` // names of fields in Args that the server must know
}

// message is one line of the answer. It has exactly one of Progress, Trace, Result and Error.
type message struct {
	Version  int       `json:"version"`            // version of the protocol in which the message is written
	Progress *Progress `json:"progress,omitempty"` // the request is in progress
	Trace    *Trace    `json:"trace,omitempty"`    // events of the operation trace
	// the request has succeeded; the value is the reply of the operation
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"` // the request has failed
	// only with Result: names of the request's fields that the server does not know
	Ignored []string `json:"ignored,omitempty"`
}

// wireMount is the form in which a MountRequest is sent. It contains the secrets as plain text, because json.Marshal
// leaves out the secrets of a MountRequest itself.
type wireMount struct {
	MountRequest
	Token        string `json:"token,omitempty"`         // token for the mounted remote
	SessionToken string `json:"session_token,omitempty"` // token for the session remote
	Environment  []byte `json:"environment,omitempty"`   // variables NAME=value, each followed by a zero byte
	// what the git directory gets in addition if it is created for this request
	NewGit *NewGit `json:"new_git,omitempty"`
}

// spellOut returns the form in which r is sent, with its secrets as plain text. Values of type Secret are never
// marshaled, so that no secret is logged by mistake.
func spellOut(r MountRequest) wireMount {
	return wireMount{r, string(r.Token), string(r.SessionToken), r.Environment.Encode(), r.NewGit}
}

// wireFork is the form in which a ForkRequest is sent. Its Mount contains the secrets as plain text.
type wireFork struct {
	ForkRequest
	Mount wireMount `json:"mount"`
}

// empty is the type of the arguments of operations without arguments.
type empty struct{}

// validate returns nil.
func (empty) validate() error { return nil }

// encodeRequest returns the line of a request for operation o, with defaults for empty arguments. It returns an error
// if the arguments are invalid or the line is too long. The request names the fields that the daemon must know; a
// daemon that does not know them refuses the request.
func encodeRequest(o op, args any) ([]byte, error) {
	switch r := args.(type) {
	case MountRequest:
		args = r.withDefaults()
	case ForkRequest:
		r.Mount = r.Mount.withDefaults()
		args = r
	}
	// The arguments are also checked by the client, so that a mistake is reported even if no daemon is running.
	if v, ok := args.(interface{ validate() error }); ok {
		if err := v.validate(); err != nil {
			return nil, err
		}
	}
	var needs []string
	if n, ok := args.(interface{ needs() []string }); ok {
		needs = n.needs()
	}
	switch r := args.(type) {
	case MountRequest:
		args = spellOut(r)
	case CredentialRequest:
		args = wireCredential{r, string(r.Token)}
	case ForkRequest:
		args = wireFork{r, spellOut(r.Mount)}
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("encode %s request: %w", o, err)
	}
	line, err := json.Marshal(request{Version: Protocol, Op: o, Args: raw, Needs: needs})
	if err != nil {
		return nil, fmt.Errorf("encode %s request: %w", o, err)
	}
	if len(line) >= maxRequest {
		return nil, badRequest("request has %d bytes, limit is %d", len(line), maxRequest)
	}
	return append(line, '\n'), nil
}

// asked is a request that the server has read and decoded.
type asked struct {
	op      op       // operation
	args    any      // arguments: a MountRequest, another request type, or empty{}
	version int      // version of the messages in the answer
	ignored []string // names of fields in the request that this server does not know
}

// decoders contains, for each operation, the function that decodes and validates its arguments.
var decoders = map[op]func(raw []byte) (args any, ignored []string, err error){
	opMount:             decodeMount,
	opUnmount:           decodeArgs[UnmountRequest],
	opPrefetch:          decodeArgs[PrefetchRequest],
	opSwitch:            decodeArgs[SwitchRequest],
	opRefresh:           decodeArgs[RefreshRequest],
	opTrace:             decodeArgs[TraceRequest],
	opUpgrade:           decodeArgs[UpgradeRequest],
	opCheckpoint:        decodeArgs[CheckpointRequest],
	opSync:              decodeArgs[SyncRequest],
	opSessionLog:        decodeArgs[SessionLogRequest],
	opSessionShow:       decodeArgs[SessionShowRequest],
	opSessionDiff:       decodeArgs[SessionDiffRequest],
	opRestore:           decodeArgs[RestoreRequest],
	opMerge:             decodeArgs[MergeRequest],
	opFork:              decodeFork,
	opSessionSet:        decodeArgs[SessionSetRequest],
	opSessionNote:       decodeArgs[SessionNoteRequest],
	opSessionRecord:     decodeArgs[SessionRecordRequest],
	opSessionGC:         decodeArgs[SessionGCRequest],
	opSessionDelete:     decodeArgs[SessionDeleteRequest],
	opSessionBack:       decodeArgs[SessionUndeleteRequest],
	opSessionTrash:      decodeArgs[SessionTrashRequest],
	opCredentialSet:     decodeCredential,
	opStatus:            decodeArgs[empty],
	opMounts:            decodeArgs[MountsRequest],
	opShutdown:          decodeArgs[empty],
	opSessions:          decodeArgs[empty],
	opSessionsOn:        decodeArgs[SessionsOnRequest],
	opSessionTranscript: decodeArgs[SessionTranscriptRequest],
	opSessionErase:      decodeArgs[SessionEraseRequest],
	opSessionFacts:      decodeArgs[SessionFactsRequest],
	opSessionCompare:    decodeArgs[SessionCompareRequest],
	opSessionApprove:    decodeArgs[SessionApproveRequest],
	opSessionApprovals:  decodeArgs[SessionApprovalsRequest],
	opSessionPolicy:     decodeArgs[SessionPolicyRequest],

	opSessionAnnotate:    decodeArgs[SessionAnnotateRequest],
	opSessionAnnotations: decodeArgs[SessionAnnotationsRequest],

	opCacheGet:       decodeArgs[CacheGetRequest],
	opCachePut:       decodeArgs[CachePutRequest],
	opCacheDelete:    decodeArgs[CacheDeleteRequest],
	opCacheKeys:      decodeArgs[CacheKeysRequest],
	opCacheGC:        decodeArgs[CacheGCRequest],
	opSessionPromote: decodeArgs[SessionPromoteRequest],
	opSessionSummary: decodeArgs[SessionSummaryRequest],
	opSessionLocks:   decodeArgs[SessionLocksRequest],
}

// decodeRequest decodes the line of a request. It ignores fields that this server does not know, and returns the names
// of these fields. If the request needs one of these fields, decodeRequest returns an error. It checks the version
// before the arguments, because in a version that is too old, fields may have another meaning.
func decodeRequest(line []byte) (asked, error) {
	var r request
	a := asked{version: Protocol}
	if err := decode(line, &r); err != nil {
		return a, err
	}
	// A client of an older version gets the error in its own version, which it can read.
	a.version, a.op = min(r.Version, Protocol), r.Op
	if r.Version < Protocol {
		return a, unsupported("request uses protocol %d, but this daemon uses protocol %d", r.Version, Protocol)
	}
	read, ok := decoders[r.Op]
	if !ok {
		return a, unsupported("unknown operation %.40q", r.Op)
	}
	if len(r.Args) == 0 {
		r.Args = []byte("{}")
	}
	var err error
	if a.args, a.ignored, err = read(r.Args); err != nil {
		return a, err
	}
	for _, field := range r.Needs {
		if slices.Contains(a.ignored, field) {
			return a, unsupported("request needs field %.40q of %s, which this daemon does not know", field, r.Op)
		}
	}
	return a, nil
}

// decodeMount decodes a mount request, which contains secrets as plain text.
func decodeMount(raw []byte) (any, []string, error) {
	var w wireMount
	if err := decode(raw, &w); err != nil {
		return nil, nil, err
	}
	r := w.request()
	return r, unknownFields(raw, reflect.TypeOf(w), ""), r.validate()
}

// decodeCredential decodes a request with a new token.
func decodeCredential(raw []byte) (any, []string, error) {
	var w wireCredential
	if err := decode(raw, &w); err != nil {
		return nil, nil, err
	}
	w.CredentialRequest.Token = Secret(w.Token)
	return w.CredentialRequest, unknownFields(raw, reflect.TypeOf(w), ""), w.CredentialRequest.validate()
}

// decodeFork decodes a fork request, whose mount request contains secrets as plain text.
func decodeFork(raw []byte) (any, []string, error) {
	var w wireFork
	if err := decode(raw, &w); err != nil {
		return nil, nil, err
	}
	w.ForkRequest.Mount = w.Mount.request()
	return w.ForkRequest, unknownFields(raw, reflect.TypeOf(w), ""), w.ForkRequest.validate()
}

// request returns the MountRequest with its secrets, and with defaults for empty fields.
func (w wireMount) request() MountRequest {
	r := w.MountRequest.withDefaults()
	r.Token, r.SessionToken, r.Environment = Secret(w.Token), Secret(w.SessionToken), DecodeEnvironment(w.Environment)
	r.NewGit = w.NewGit
	return r
}

// decodeArgs decodes and validates the arguments of an operation whose arguments contain no secrets.
func decodeArgs[T interface{ validate() error }](raw []byte) (any, []string, error) {
	var args T
	if err := decode(raw, &args); err != nil {
		return nil, nil, err
	}
	return args, unknownFields(raw, reflect.TypeOf(args), ""), args.validate()
}

// decode decodes one JSON value. Its error describes the problem without quoting values, because a value may be a
// token.
func decode(raw []byte, v any) error {
	if !utf8.Valid(raw) {
		return badRequest("request is not valid UTF-8")
	}
	err := json.Unmarshal(raw, v)
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return badRequest("field %q has the wrong type", wrongType.Field)
	case err != nil:
		return badRequest("request is not a JSON object of this protocol")
	}
	return nil
}

// unknownFields returns the names of all members of a JSON object, and of the objects in it, for which the struct type
// t has no field. The names are sorted and begin with prefix. Like encoding/json, unknownFields ignores the case of
// letters.
func unknownFields(raw []byte, t reflect.Type, prefix string) (names []string) {
	var members map[string]json.RawMessage
	if t.Kind() != reflect.Struct || json.Unmarshal(raw, &members) != nil {
		return nil
	}
	fields := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = f.Type
		}
	}
	for name, value := range members {
		if field, ok := fields[strings.ToLower(name)]; ok {
			names = append(names, unknownFields(value, field, prefix+name+".")...)
		} else {
			names = append(names, prefix+name)
		}
	}
	slices.Sort(names)
	return names
}

// decodeMessage decodes one line of an answer.
func decodeMessage(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("read reply: %w", err)
	}
	n := 0
	for _, there := range []bool{m.Progress != nil, m.Trace != nil, m.Result != nil, m.Error != nil} {
		if there {
			n++
		}
	}
	// Do not check a message of another version, because it may have another form. The caller reports the version.
	if m.Version == Protocol && n != 1 {
		return m, errors.New("read reply: message must have exactly one of progress, trace, result and error")
	}
	return m, nil
}

// readLine reads a line and returns it without the newline. It returns io.EOF only if the input ends before the first
// byte, and an error if the line is longer than limit bytes.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return nil, fmt.Errorf("line is longer than the limit of %d bytes", limit)
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
