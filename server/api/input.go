package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/server/places"
)

// maxBody is the maximum size of the body of a request in bytes.
const maxBody = 1 << 20

// fields are the fields of a JSON object that a client has sent. The names of fields are case-sensitive. A method that
// reads a field records the first fault; unknown fields are ignored.
type fields struct {
	in    map[string]json.RawMessage
	under string // path of the object within the body, such as "base/"
	fault *Fault
}

// body reads the body of the request as a JSON object. An empty body counts as an object without fields. A large body
// has a place until the end of the request, because its fields stay in memory.
func (c *call) body() (_ *fields, err error) {
	if c.leave, err = c.a.bodies.Enter(c.r.Context(), c.r.ContentLength,
		places.Of(c.params["namespace"], c.of.ID, c.token.ID)...); err != nil {
		return nil, err
	}
	control := http.NewResponseController(c.w)
	// an error is ignored, because the writers of tests have no deadlines
	_ = control.SetReadDeadline(time.Now().Add(patience))
	text, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if err != nil { // the deadline remains in force for the rest of the body
		if big := (*http.MaxBytesError)(nil); errors.As(err, &big) {
			return nil, err
		}
		return nil, unreadable()
	}
	_ = control.SetReadDeadline(time.Time{}) // remove the deadline, which would otherwise cancel the request
	return parseBody(text)
}

// unreadable returns the fault for a body that the client has not sent completely, or not in time.
func unreadable() *Fault {
	return &Fault{http.StatusBadRequest, codeInput, "Request body could not be read", ""}
}

func parseBody(text []byte) (*fields, error) {
	f := &fields{in: map[string]json.RawMessage{}}
	if len(bytes.TrimSpace(text)) == 0 {
		return f, nil
	}
	if !json.Valid(text) || !utf8.Valid(text) {
		return nil, &Fault{http.StatusBadRequest, codeInput, "Malformed JSON in request body", ""}
	}
	if kind := kindOf(text); kind != "object" {
		return nil, &Fault{http.StatusBadRequest, codeInput, "Invalid input: expected object, received " + kind, ""}
	}
	return f, json.Unmarshal(text, &f.in)
}

// kindOf returns the name of the type of a valid JSON value, as in the reference.
func kindOf(value json.RawMessage) string {
	value = bytes.TrimSpace(value)
	if len(value) == 0 {
		return "undefined"
	}
	switch value[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

// refuse records a fault, unless one was recorded before.
func (f *fields) refuse(fault *Fault) {
	if f.fault == nil && fault != nil {
		f.fault = fault
	}
}

// err returns the first fault that was recorded.
func (f *fields) err() error {
	if f.fault == nil {
		return nil
	}
	return f.fault
}

// value decodes a field into to, if its JSON type is kind. It returns false if the field is missing, null, or has
// another type.
func (f *fields) value(name, kind string, to any) bool {
	raw, ok := f.in[name]
	switch got := kindOf(raw); {
	case !ok || got == "null":
		return false
	case got != kind:
		f.refuse(invalid(f.under+name, "Invalid input: expected %s, received %s", kind, got))
		return false
	}
	if err := json.Unmarshal(raw, to); err != nil {
		f.refuse(invalid(f.under+name, "Invalid input: expected %s", kind))
		return false
	}
	return true
}

// text returns a string of at most maxText bytes, "" if the field is missing.
func (f *fields) text(name string) (s string) {
	f.value(name, "string", &s)
	if len(s) > maxText {
		f.refuse(invalid(f.under+name, "Too big: expected string to have <=%d characters", maxText))
	}
	return s
}

// required is like text, but the field must not be missing.
func (f *fields) required(name string) string {
	if kind := kindOf(f.in[name]); kind == "undefined" || kind == "null" {
		f.refuse(invalid(f.under+name, "Invalid input: expected string, received %s", kind))
	}
	return f.text(name)
}

func (f *fields) flag(name string) (b bool) {
	f.value(name, "boolean", &b)
	return b
}

// number returns an integer. If the field is missing, it returns otherwise.
func (f *fields) number(name string, otherwise int) int {
	var n float64
	switch {
	case !f.value(name, "number", &n):
		return otherwise
	case n != math.Trunc(n) || math.Abs(n) > 1<<31:
		f.refuse(invalid(f.under+name, "Invalid input: expected int, received number"))
		return otherwise
	}
	return int(n)
}

// option returns a string that must be one of values. If the field is missing, it returns otherwise.
func (f *fields) option(name, otherwise string, values ...string) string {
	s := otherwise
	if f.value(name, "string", &s) {
		f.refuse(among(f.under+name, s, values))
	}
	return s
}

// object returns the fields of an object, or nil if the field is missing. The caller must pass the fault of the object
// to refuse.
func (f *fields) object(name string) *fields {
	o := &fields{under: f.under + name + "/"}
	if !f.value(name, "object", &o.in) {
		return nil
	}
	return o
}

// list returns the elements of an array.
func (f *fields) list(name string) (list []json.RawMessage) {
	f.value(name, "array", &list)
	return list
}

// texts returns an array of strings.
func (f *fields) texts(name string) []string {
	var all []string
	for i, raw := range f.list(name) {
		var s string
		if kind := kindOf(raw); kind != "string" {
			f.refuse(invalid(f.under+name+"/"+strconv.Itoa(i), "Invalid input: expected string, received %s", kind))
			return nil
		}
		_ = json.Unmarshal(raw, &s) // there is no error, because the value is a string
		all = append(all, s)
	}
	return all
}

// among returns a fault unless s is one of values.
func among(field, s string, values []string) *Fault {
	if slices.Contains(values, s) {
		return nil
	}
	return invalid(field, `Invalid option: expected one of "%s"`, strings.Join(values, `"|"`))
}

// query reads parameters of the URL's query. It records the first fault.
type query struct {
	values url.Values
	fault  *Fault
}

func (c *call) query() *query {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.fault = &Fault{http.StatusBadRequest, codeInput, "Malformed query", ""}
	}
	return q
}

func (q *query) refuse(f *Fault) {
	if q.fault == nil && f != nil {
		q.fault = f
	}
}

func (q *query) err() error {
	if q.fault == nil {
		return nil
	}
	return q.fault
}

func (q *query) text(name string) string { return q.values.Get(name) }

// required returns a parameter that must not be missing.
func (q *query) required(name string) string {
	switch s := q.values.Get(name); {
	case !q.values.Has(name):
		q.refuse(invalid(name, "Invalid input: expected string, received undefined"))
		return ""
	case s == "":
		q.refuse(invalid(name, "Too small: expected string to have >=1 characters"))
		return ""
	default:
		return s
	}
}

// number returns a parameter, which must be between least and most. If it is missing, number returns otherwise. A most
// of -1 means no limit.
func (q *query) number(name string, otherwise, least, most int) int {
	s := q.values.Get(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(s, 10, 64) // ParseInt returns the largest number if s is too large
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		q.refuse(invalid(name, "Invalid input: expected number, received NaN"))
	case most >= 0 && n > int64(most):
		q.refuse(invalid(name, "Too big: expected number to be <=%d", most))
	case n < int64(least) && least == 1:
		q.refuse(invalid(name, "Too small: expected number to be >0"))
	case n < int64(least):
		q.refuse(invalid(name, "Too small: expected number to be >=%d", least))
	default:
		return int(min(n, maxNumber))
	}
	return otherwise
}

// maxNumber is the largest accepted number in a query, so that the product of a page number and a page size does not
// overflow.
const maxNumber = 1 << 40

// option returns a parameter that must be one of values. The first value is the default.
func (q *query) option(name string, values ...string) string {
	s := q.values.Get(name)
	if s == "" {
		return values[0]
	}
	q.refuse(among(name, s, values))
	return s
}
