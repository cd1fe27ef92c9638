package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/artifactfs/artifactfs/git/gitsocket"
)

// These limits apply to one question of git.
const (
	askTries = 5 // maximum number of attempts, because the worker may die; its successor then answers on the same socket
	askTime  = 2 * time.Minute
)

// Ask is the credential helper: it reads git's question from in and writes the daemon's answer to out. op is git's
// operation; Ask ignores an unknown operation, as the protocol requires. If Ask returns an error, the caller prints it
// for the user, and git continues with the next helper.
func Ask(ctx context.Context, gitDir, op string, in io.Reader, out io.Writer) error {
	if op != opGet && op != opStore && op != opErase {
		return nil
	}
	q, _, err := readMessage(in)
	if err != nil {
		return err
	}
	q.op = op
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var answer message
	// A failed exchange is repeated, because a new worker may be taking over the socket.
	for range askTries {
		if answer, err = exchange(ctx, gitDir, q); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("request a login from the mount's daemon: %w", err)
	}
	if answer.failure != "" {
		return errors.New(answer.failure)
	}
	// An empty answer lets git continue with the next helper.
	if op != opGet || answer.password == "" && answer.value == "" {
		return nil
	}
	// The line "op=" is not part of git's protocol.
	answer.op = ""
	_, err = out.Write(answer.lines())
	return err
}

// exchange sends one question to the daemon and returns the answer. Each question needs a separate connection.
func exchange(ctx context.Context, gitDir string, q message) (message, error) {
	conn, err := gitsocket.Dial(ctx, gitDir, socketName)
	if err != nil {
		return message{}, err
	}
	defer conn.Close()
	// Closing the connection makes a blocked read return when ctx ends.
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(q.lines()); err != nil {
		return message{}, err
	}
	answer, whole, err := readMessage(conn)
	if err == nil && !whole { // the daemon died before it had sent the whole answer
		err = io.ErrUnexpectedEOF
	}
	return answer, err
}

// PasswordIn returns the password in an answer of git's credential protocol; "" if there is none.
func PasswordIn(answer []byte) string {
	for line := range bytes.Lines(answer) {
		if password, ok := bytes.CutPrefix(bytes.TrimRight(line, "\n"), []byte("password=")); ok {
			return string(password)
		}
	}
	return ""
}
