//! The inputs of a run, held against the program's.

use std::collections::{BTreeMap, BTreeSet};

use super::RunError;
use super::size::port_bytes;
use crate::lower::{Port, Program};
use crate::types::{Dim, Tensor};

/// The inputs in the program's order, and the batch size that they have.
pub(super) fn check<'a>(
    program: &Program,
    inputs: &'a BTreeMap<String, Tensor>,
) -> Result<(i64, Vec<&'a Tensor>), RunError> {
    let known = || program.inputs.iter().map(|p| p.name.to_string()).collect();
    let wanted = program.inputs.iter().filter(|p| inputs.contains_key(&*p.name)).count();
    if wanted < inputs.len() {
        let names: BTreeSet<&str> = program.inputs.iter().map(|p| &*p.name).collect();
        if let Some(name) = inputs.keys().find(|name| !names.contains(name.as_str())) {
            return Err(RunError::UnknownInput { name: name.clone(), known: known() });
        }
    }
    let mut tensors = Vec::with_capacity(program.inputs.len());
    for port in &program.inputs {
        let tensor = inputs.get(&*port.name).ok_or_else(|| RunError::MissingInput {
            name: port.name.to_string(),
            ty: Box::new(port.ty.clone()),
        })?;
        check_form(port, tensor)?;
        tensors.push(tensor);
    }
    let n = batch_size(program, &tensors)?;
    for (port, tensor) in program.inputs.iter().zip(&tensors) {
        if port.ty.shape.at(n).as_slice() != tensor.dims() {
            return Err(shape_error(port, tensor));
        }
    }
    Ok((n, tensors))
}

/// The number of the input without axes that is to have another value.
pub(super) fn scalar(program: &Program, name: &str, value: &Tensor) -> Result<usize, RunError> {
    let known = || program.inputs.iter().map(|p| p.name.to_string()).collect();
    let i = program.inputs.iter().position(|port| *port.name == *name);
    let i = i.ok_or_else(|| RunError::UnknownInput { name: name.to_owned(), known: known() })?;
    let port = &program.inputs[i];
    check_form(port, value)?;
    if port.ty.rank() == 0 { Ok(i) } else { Err(RunError::Settled(name.to_owned())) }
}

/// Fails if a run with a batch of `n` rows takes more memory than allowed; `held` are the bytes of
/// arenas and parameters there.
pub(super) fn check_memory(
    program: &Program,
    n: i64,
    held: impl IntoIterator<Item = u64>,
    limit: Option<u64>,
) -> Result<(), RunError> {
    let Some(limit) = limit else { return Ok(()) };
    let ports = program.inputs.iter().chain(&program.outputs);
    let mut needed = held.into_iter().fold(0, u64::saturating_add);
    for port in ports {
        needed = needed.saturating_add(port_bytes(port, n)? as u64);
    }
    if needed > limit {
        return Err(RunError::Memory { n, needed, limit });
    }
    Ok(())
}

/// Fails unless element type, rank and the sizes that are constants agree.
fn check_form(port: &Port, tensor: &Tensor) -> Result<(), RunError> {
    if tensor.dtype() != port.ty.dtype {
        return Err(RunError::InputDType {
            name: port.name.to_string(),
            expected: port.ty.dtype,
            found: tensor.dtype(),
        });
    }
    let fits =
        |(dim, size): (&Dim, &usize)| dim.as_const().is_none_or(|c| i64::try_from(*size) == Ok(c));
    if tensor.rank() != port.ty.rank() || !port.ty.shape.iter().zip(tensor.dims()).all(fits) {
        return Err(shape_error(port, tensor));
    }
    Ok(())
}

fn shape_error(port: &Port, tensor: &Tensor) -> RunError {
    RunError::InputShape {
        name: port.name.to_string(),
        expected: Box::new(port.ty.clone()),
        found: Box::new(tensor.tensor_type()),
    }
}

/// The batch size that the sizes which determine it agree on; 1 where no input carries the batch.
fn batch_size(program: &Program, tensors: &[&Tensor]) -> Result<i64, RunError> {
    let mut known: Option<(&str, i64)> = None;
    let mut undetermined = None;
    for (port, tensor) in program.inputs.iter().zip(tensors) {
        for (dim, size) in port.ty.shape.iter().zip(tensor.dims()) {
            if !dim.depends_on_batch() {
                continue;
            }
            match (known, solve(dim, *size)) {
                (_, None) => undetermined = undetermined.or(Some((port, *tensor))),
                (None, Some(n)) => known = Some((&port.name, n)),
                (Some((_, rows)), Some(n)) if rows == n => {}
                (Some((first, rows)), Some(others)) => {
                    let (first, second) = (first.to_owned(), port.name.to_string());
                    return Err(RunError::BatchSizes { first, rows, second, others });
                }
            }
        }
    }
    match (known, undetermined) {
        (Some((_, n)), _) => Ok(n),
        (None, Some((port, tensor))) => Err(shape_error(port, tensor)),
        (None, None) => Ok(1),
    }
}

/// The batch size at which `dim` is `size`, where `dim` is a linear function that determines it.
fn solve(dim: &Dim, size: usize) -> Option<i64> {
    let size = i64::try_from(size).ok()?;
    let (at_zero, slope) = (dim.eval(0), dim.eval(1).checked_sub(dim.eval(0))?);
    let n = size.checked_sub(at_zero)?.checked_div(slope)?;
    (n >= 0 && dim.eval(n) == size).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::check_memory;
    use crate::backend::CPU;
    use crate::ir::verify;
    use crate::lower::lower;
    use crate::lower::testing::template;
    use crate::types::Dim;

    #[test]
    fn an_output_of_no_size_is_no_output_of_no_bytes() {
        let (graph, _) = template();
        let mut program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
        assert!(check_memory(&program, 2, [0], Some(1 << 20)).is_ok());
        let port = &mut program.outputs[0];
        port.ty.shape = [Dim::n() - 3].as_slice().into();
        let name = port.name.clone();
        let said = check_memory(&program, 2, [0], Some(1 << 20)).unwrap_err().to_string();
        assert!(said.starts_with(&format!("internal error on cpu:0 in `{name}`: ")), "{said}");
    }
}
