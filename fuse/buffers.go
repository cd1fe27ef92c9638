package fuse

import (
	"errors"
	"os"
	"reflect"
	"sync"
	"unsafe"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// residentBuffers makes a server of the library read requests into memory that has pages.
//
// The kernel takes a request from its queue and then copies it to the reader's memory. If that has
// no page there, and the process has been killed meanwhile, the page cannot be allocated (mm/gup.c,
// fatal_signal_pending): the request is lost, and its caller gets EIO (fs/fuse/dev.c,
// fuse_dev_do_read), which no successor can repair. New memory of Go has no pages until it is
// written, and the library needs new buffers all the time, since it lets the garbage collector free
// them.
func residentBuffers(s *raw.Server) error {
	field := reflect.ValueOf(s).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return errors.New("the library's buffers are not where they were")
	}
	pool := (*sync.Pool)(unsafe.Pointer(field.UnsafeAddr()))
	fresh := pool.New
	*pool = sync.Pool{New: func() any { // without the buffer into which INIT was read
		buffer := fresh()
		b := buffer.([]byte)
		for i := 0; i < len(b); i += os.Getpagesize() {
			b[i] = 0
		}
		b[len(b)-1] = 0
		return buffer
	}}
	return nil
}
