//! Any message is a call, a batch or an error with one of JSON-RPC's codes; any parameters are read or refused.
#![no_main]

use kli_protocol::api::{Method, Visitor, visit_methods};
use kli_protocol::decode_params;
use kli_protocol::error::code;
use kli_protocol::rpc::{Invalid, Parsed, Request, parse, parse_call};
use libfuzzer_sys::fuzz_target;

struct Decode<'a>(&'a Request<'a>);

impl Visitor for Decode<'_> {
    fn method<M: Method>(&mut self) {
        let Err(error) = decode_params::<M::Params>(self.0.params.map(|params| params.get())) else { return };
        assert_eq!(error.code, code::INVALID_PARAMS);
    }
}

fn check(call: Result<Request<'_>, Invalid<'_>>) {
    match call {
        Ok(request) => visit_methods(&mut Decode(&request)),
        Err(invalid) => assert!([code::PARSE_ERROR, code::INVALID_REQUEST].contains(&invalid.error.code)),
    }
}

fuzz_target!(|message: &[u8]| {
    match parse(message) {
        Parsed::Call(request) => check(Ok(request)),
        Parsed::Invalid(invalid) => check(Err(invalid)),
        Parsed::Batch(members) => members.into_iter().for_each(|member| check(parse_call(member.get()))),
    }
});
